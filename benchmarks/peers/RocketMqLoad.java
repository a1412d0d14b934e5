import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.HARuntimeInfo;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * The load process of RocketMQ's own client, one JVM for all runs. It answers a line of words with a line of JSON (driver.py).
 *
 * <pre>
 * topic   topic= queues= broker=                       creates a topic
 * group   group= broker=                               creates a consumer group
 * fill    topic= size= count= [threads= batch=]        sends numbered bodies, like those of bodies.py
 * produce topic= size= seconds= threads= [batch=1]     sends new messages; a status other than SEND_OK is an error
 * pull    topic= threads= batch=                       reads the whole topic, and every body
 * count   topic= [until=]                              counts the messages of a topic, and waits until it has `until`
 * lag     topic= size= rate= seconds= threads= broker= sends at a rate, and measures the slave's lag meanwhile
 * ha      broker=                                      returns the end of the master's log, and the slave's acknowledged offset
 * await   broker= offset=                              waits until the slave has this offset; measures from its first acknowledgement
 * </pre>
 */
public final class RocketMqLoad {
    interface Send {
        int once() throws Exception;
    }

    private static String nameServer;
    private static DefaultMQProducer producer;
    private static DefaultMQAdminExt admin;

    public static void main(String[] arguments) throws Exception {
        nameServer = arguments[0];
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                answer = answer(line.trim());
            } catch (Throwable error) {
                error.printStackTrace();
                answer = "{\"error\": \"" + (error.getClass().getSimpleName() + ": " + error.getMessage()).replaceAll("[\"\\\\\\p{Cntrl}]", "'") + "\"}";
            }
            System.out.println(answer);
            System.out.flush();
        }
        System.exit(0); // the client's threads would keep the JVM alive
    }

    private static String answer(String line) throws Exception {
        String[] words = line.split(" ");
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            int at = words[i].indexOf('=');
            options.put(words[i].substring(0, at), words[i].substring(at + 1));
        }
        switch (words[0]) {
            case "topic": return topic(options);
            case "group": return group(options);
            case "fill": return fill(options);
            case "produce": return produce(options);
            case "pull": return pull(options);
            case "count": return count(options);
            case "ha": return ha(options);
            case "await": return await(options);
            case "lag": return lag(options);
            default: throw new IllegalArgumentException(words[0]);
        }
    }

    private static int number(Map<String, String> options, String key, int otherwise) {
        return Integer.parseInt(options.getOrDefault(key, Integer.toString(otherwise)));
    }

    private static DefaultMQProducer producer() throws Exception {
        if (producer == null) {
            producer = new DefaultMQProducer("bench_producer");
            producer.setNamesrvAddr(nameServer);
            producer.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
            producer.setSendMsgTimeout(90_000);
            producer.start();
        }
        return producer;
    }

    private static DefaultMQAdminExt admin() throws Exception {
        if (admin == null) {
            admin = new DefaultMQAdminExt(10_000);
            admin.setNamesrvAddr(nameServer);
            admin.start();
        }
        return admin;
    }

    private static String topic(Map<String, String> options) throws Exception {
        int queues = number(options, "queues", 4);
        TopicConfig config = new TopicConfig(options.get("topic"), queues, queues, 6);
        if (options.containsKey("type")) {
            config.getAttributes().put("+message.type", options.get("type"));
        }
        admin().createAndUpdateTopicConfig(options.get("broker"), config);
        // The name server learns of the topic with the broker's next registration.
        for (int attempt = 0; ; attempt++) {
            try {
                admin().examineTopicRouteInfo(options.get("topic"));
                return "{}";
            } catch (Exception error) {
                if (attempt > 150) {
                    throw error;
                }
                Thread.sleep(200);
            }
        }
    }

    private static String group(Map<String, String> options) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(options.get("group"));
        admin().createAndUpdateSubscriptionGroupConfig(options.get("broker"), config);
        return "{}";
    }

    private static String rate(long messages, double seconds) {
        return String.format("\"messages\": %d, \"seconds\": %.6f, \"rate\": %.3f", messages, seconds, messages / seconds);
    }

    private static int ok(SendResult result, int count) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("a message was stored, but " + result.getSendStatus());
        }
        return count;
    }

    private static String produce(Map<String, String> options) throws Exception {
        byte[] body = new byte[number(options, "size", 100)];
        Arrays.fill(body, (byte) 'x');
        String topic = options.get("topic");
        int batch = number(options, "batch", 1);
        DefaultMQProducer producer = producer();
        Send one = () -> ok(producer.send(new Message(topic, body)), 1);
        Send many = () -> {
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(new Message(topic, body));
            }
            return ok(producer.send(messages), batch);
        };
        return threads(number(options, "threads", 64), Double.parseDouble(options.get("seconds")), batch == 1 ? one : many);
    }

    /** Sends in every thread until the time is up. The histogram has a bucket for each microsecond; the last one is for 2 s and more. */
    private static String threads(int threads, double seconds, Send send) throws Exception {
        int buckets = 2_000_000;
        java.util.concurrent.atomic.AtomicIntegerArray histogram = new java.util.concurrent.atomic.AtomicIntegerArray(buckets);
        LongAdder done = new LongAdder();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        long from = System.nanoTime();
        long end = from + (long) (seconds * 1e9);
        Thread[] workers = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            workers[t] = new Thread(() -> {
                try {
                    for (long before = System.nanoTime(); before < end; before = System.nanoTime()) {
                        done.add(send.once());
                        histogram.incrementAndGet((int) Math.min((System.nanoTime() - before) / 1000, buckets - 1));
                    }
                } catch (Throwable error) {
                    failure.set(error);
                }
            });
            workers[t].start();
        }
        join(workers, failure);
        double took = (System.nanoTime() - from) / 1e9;
        return "{" + rate(done.sum(), took) + String.format(", \"p50_ms\": %.3f, \"p99_ms\": %.3f}", quantile(histogram, 0.5), quantile(histogram, 0.99));
    }

    private static void join(Thread[] workers, AtomicReference<Throwable> failure) throws InterruptedException {
        for (Thread worker : workers) {
            worker.join();
        }
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get().toString());
        }
    }

    private static double quantile(java.util.concurrent.atomic.AtomicIntegerArray histogram, double share) {
        long calls = 0;
        for (int i = 0; i < histogram.length(); i++) {
            calls += histogram.get(i);
        }
        long seen = 0;
        for (int i = 0; i < histogram.length(); i++) {
            seen += histogram.get(i);
            if (seen >= calls * share) {
                return i / 1000.0;
            }
        }
        return -1;
    }

    private static byte[] body(long number, int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        for (int i = 19; i >= 0; i--) {
            body[i] = (byte) ('0' + number % 10);
            number /= 10;
        }
        return body;
    }

    private static String fill(Map<String, String> options) throws Exception {
        String topic = options.get("topic");
        int size = number(options, "size", 100);
        int batch = number(options, "batch", size > 500 ? 200 : 500);
        long count = Long.parseLong(options.get("count"));
        DefaultMQProducer producer = producer();
        AtomicLong next = new AtomicLong();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        Thread[] workers = new Thread[number(options, "threads", 4)];
        long from = System.nanoTime();
        for (int t = 0; t < workers.length; t++) {
            workers[t] = new Thread(() -> {
                try {
                    for (long first = next.getAndAdd(batch); first < count; first = next.getAndAdd(batch)) {
                        List<Message> messages = new ArrayList<>(batch);
                        for (long i = first; i < Math.min(first + batch, count); i++) {
                            messages.add(new Message(topic, body(i, size)));
                        }
                        for (int attempt = 0; ; attempt++) {
                            try {
                                producer.send(messages);
                                break;
                            } catch (Exception error) { // the broker's flow control refuses sends at times
                                if (attempt > 60) {
                                    throw error;
                                }
                                Thread.sleep(200);
                            }
                        }
                    }
                } catch (Throwable error) {
                    failure.set(error);
                }
            });
            workers[t].start();
        }
        join(workers, failure);
        return "{" + rate(count, (System.nanoTime() - from) / 1e9) + "}";
    }

    private static DefaultMQPullConsumer consumer() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("bench_pull");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("bench" + System.nanoTime());
        consumer.start();
        return consumer;
    }

    private static String count(Map<String, String> options) throws Exception {
        long until = Long.parseLong(options.getOrDefault("until", "0"));
        long deadline = System.nanoTime() + 300_000_000_000L;
        DefaultMQPullConsumer consumer = consumer();
        try {
            while (true) {
                try {
                    long messages = 0;
                    for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(options.get("topic"))) {
                        messages += consumer.maxOffset(queue) - consumer.minOffset(queue);
                    }
                    if (messages >= until) {
                        return "{\"messages\": " + messages + "}";
                    }
                } catch (Exception error) { // a broker that has just started may refuse
                    if (until == 0 || System.nanoTime() > deadline) {
                        throw error;
                    }
                }
                Thread.sleep(5);
            }
        } finally {
            consumer.shutdown();
        }
    }

    private static String pull(Map<String, String> options) throws Exception {
        int batch = number(options, "batch", 32);
        DefaultMQPullConsumer consumer = consumer();
        try {
            List<MessageQueue> queues = new ArrayList<>(consumer.fetchSubscribeMessageQueues(options.get("topic")));
            LongAdder messages = new LongAdder();
            LongAdder bytes = new LongAdder();
            LongAdder pulls = new LongAdder();
            AtomicReference<Throwable> failure = new AtomicReference<>();
            Thread[] workers = new Thread[Math.min(number(options, "threads", 4), queues.size())];
            long from = System.nanoTime();
            for (int t = 0; t < workers.length; t++) {
                int worker = t;
                workers[t] = new Thread(() -> {
                    try {
                        for (int q = worker; q < queues.size(); q += workers.length) {
                            long offset = consumer.minOffset(queues.get(q));
                            while (true) {
                                PullResult result = consumer.pull(queues.get(q), "*", offset, batch);
                                pulls.increment();
                                offset = result.getNextBeginOffset();
                                if (result.getPullStatus() == PullStatus.NO_NEW_MSG) {
                                    break;
                                }
                                if (result.getPullStatus() == PullStatus.FOUND) {
                                    long size = 0;
                                    for (MessageExt message : result.getMsgFoundList()) {
                                        size += message.getBody().length;
                                    }
                                    bytes.add(size);
                                    messages.add(result.getMsgFoundList().size());
                                }
                            }
                        }
                    } catch (Throwable error) {
                        failure.set(error);
                    }
                });
                workers[t].start();
            }
            join(workers, failure);
            double seconds = (System.nanoTime() - from) / 1e9;
            return "{" + rate(messages.sum(), seconds) + String.format(", \"bytes\": %d, \"a_pull\": %.1f}", bytes.sum(), (double) messages.sum() / pulls.sum());
        } finally {
            consumer.shutdown();
        }
    }

    private static long acknowledged(HARuntimeInfo info) {
        return info.getHaConnectionInfo().stream().mapToLong(HARuntimeInfo.HAConnectionRuntimeInfo::getSlaveAckOffset).max().orElse(-1);
    }

    private static String ha(Map<String, String> options) throws Exception {
        HARuntimeInfo info = admin().getBrokerHAStatus(options.get("broker"));
        return String.format("{\"end\": %d, \"acknowledged\": %d}", info.getMasterCommitLogMaxOffset(), acknowledged(info));
    }

    private static String await(Map<String, String> options) throws Exception {
        long want = Long.parseLong(options.get("offset"));
        long first = -1;
        long from = 0;
        while (true) {
            long acknowledged = acknowledged(admin().getBrokerHAStatus(options.get("broker")));
            long now = System.nanoTime();
            if (acknowledged > 0 && first < 0) {
                first = acknowledged;
                from = now;
            }
            if (acknowledged >= want) {
                return String.format("{\"bytes\": %d, \"seconds\": %.6f}", acknowledged - first, (now - from) / 1e9);
            }
            Thread.sleep(5);
        }
    }

    /**
     * Measures the lag like catchup.py: every 2 ms, for how long the slave has lacked bytes of the log. The lag is measured from
     * the last sample whose log end the slave has now.
     */
    private static String lag(Map<String, String> options) throws Exception {
        double rate = Double.parseDouble(options.get("rate"));
        double seconds = Double.parseDouble(options.get("seconds"));
        byte[] body = new byte[number(options, "size", 1024)];
        String topic = options.get("topic");
        DefaultMQProducer producer = producer();
        AtomicLong next = new AtomicLong();
        long from = System.nanoTime();
        List<Double> lags = new ArrayList<>();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        java.util.concurrent.atomic.AtomicBoolean done = new java.util.concurrent.atomic.AtomicBoolean();
        Thread watch = new Thread(() -> {
            try {
                java.util.ArrayDeque<long[]> seen = new java.util.ArrayDeque<>();
                long covered = System.nanoTime();
                while (!done.get()) {
                    HARuntimeInfo info = admin().getBrokerHAStatus(options.get("broker"));
                    long now = System.nanoTime();
                    long acknowledged = acknowledged(info);
                    seen.add(new long[] {now, info.getMasterCommitLogMaxOffset()});
                    while (!seen.isEmpty() && seen.peek()[1] <= acknowledged) {
                        covered = seen.poll()[0];
                    }
                    lags.add(seen.isEmpty() ? 0.0 : (now - covered) / 1e6);
                    Thread.sleep(2);
                }
            } catch (Throwable error) {
                failure.set(error);
            }
        });
        watch.start();
        LongAdder sent = new LongAdder();
        Thread[] workers = new Thread[number(options, "threads", 64)];
        for (int t = 0; t < workers.length; t++) {
            workers[t] = new Thread(() -> {
                try {
                    for (long number = next.getAndIncrement(); number < rate * seconds; number = next.getAndIncrement()) {
                        long wait = from + (long) (number / rate * 1e9) - System.nanoTime();
                        if (wait > 0) {
                            java.util.concurrent.locks.LockSupport.parkNanos(wait);
                        }
                        ok(producer.send(new Message(topic, body)), 1);
                        sent.increment();
                    }
                } catch (Throwable error) {
                    failure.set(error);
                }
            });
            workers[t].start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        double took = (System.nanoTime() - from) / 1e9;
        done.set(true);
        watch.join();
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get().toString());
        }
        lags.sort(null);
        int at = (int) Math.ceil(lags.size() * 0.99) - 1;
        return "{" + rate(sent.sum(), took) + String.format(", \"p99_ms\": %.3f, \"looks\": %d}", lags.get(at), lags.size());
    }
}
