import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/**
 * The load process of RocketMQ 5's Java client at an endpoint. It answers a line of words with a line of JSON (driver.py).
 *
 * <pre>
 * send    size= seconds= threads=      sends with blocking calls
 * consume seconds= threads=            each thread receives up to 32 messages and acknowledges each
 * </pre>
 */
public final class RocketMqV2Load {
    private interface Turn {
        int once(List<Long> nanos) throws Exception;
    }

    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static ClientConfiguration configuration;
    private static String topic;
    private static String group;
    private static Producer producer;
    private static SimpleConsumer consumer;

    public static void main(String[] arguments) throws Exception {
        configuration = ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10)).build();
        topic = arguments[1];
        group = arguments[2];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = answer(line.trim());
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "{\"error\": \"" + error.toString().replaceAll("[\"\\\\\\p{Cntrl}]", "'") + "\"}";
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0); // the client's threads would keep the JVM alive
    }

    private static String answer(String line) throws Exception {
        String[] words = line.split(" ");
        Map<String, Integer> options = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            String[] pair = words[i].split("=");
            options.put(pair[0], Integer.valueOf(pair[1]));
        }
        switch (words[0]) {
            case "send": return send(options);
            case "consume": return consume(options);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static String send(Map<String, Integer> options) throws Exception {
        if (producer == null) {
            producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
        }
        byte[] body = new byte[options.get("size")];
        Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
        return threads(options, nanos -> {
            long before = System.nanoTime();
            producer.send(message);
            nanos.add(System.nanoTime() - before);
            return 1;
        });
    }

    private static String consume(Map<String, Integer> options) throws Exception {
        if (consumer == null) {
            consumer = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
                .setAwaitDuration(Duration.ofSeconds(5))
                .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build();
        }
        return threads(options, nanos -> {
            List<MessageView> found = consumer.receive(32, Duration.ofMinutes(1));
            for (MessageView view : found) {
                long before = System.nanoTime();
                consumer.ack(view);
                nanos.add(System.nanoTime() - before);
            }
            return found.size();
        });
    }

    private static String threads(Map<String, Integer> options, Turn turn) throws Exception {
        List<Long> all = Collections.synchronizedList(new ArrayList<>());
        List<Throwable> failures = Collections.synchronizedList(new ArrayList<>());
        long from = System.nanoTime();
        long end = from + options.get("seconds") * 1_000_000_000L;
        int[] counts = new int[options.get("threads")];
        Thread[] workers = new Thread[counts.length];
        for (int i = 0; i < counts.length; i++) {
            int worker = i;
            workers[i] = new Thread(() -> {
                List<Long> nanos = new ArrayList<>();
                try {
                    while (System.nanoTime() < end) {
                        counts[worker] += turn.once(nanos);
                    }
                } catch (Throwable error) {
                    failures.add(error);
                }
                all.addAll(nanos);
            });
            workers[i].start();
        }
        long messages = 0;
        for (int i = 0; i < counts.length; i++) {
            workers[i].join();
            messages += counts[i];
        }
        double seconds = (System.nanoTime() - from) / 1e9;
        if (!failures.isEmpty()) {
            throw new IllegalStateException(failures.get(0));
        }
        if (all.isEmpty()) {
            throw new IllegalStateException("no message came");
        }
        Collections.sort(all);
        double p99 = all.get((int) Math.ceil(all.size() * 0.99) - 1) / 1e6;
        return String.format("{\"messages\": %d, \"seconds\": %.6f, \"rate\": %.3f, \"p99_ms\": %.3f}", messages, seconds, messages / seconds, p99);
    }
}
