import java.io.BufferedReader;
import java.io.Closeable;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The Java client of test_official_clients.py, whose docstring lists the lines that each client prints. */
public final class Client {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static volatile boolean sending = true;
    private static volatile boolean receiving = true;

    private interface Turn {
        void run(int number) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        ClientConfigurationBuilder builder =
            ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(args[3].equals("tls"));
        if (!args[1].isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(args[1], args[2]));
        }
        ClientConfiguration configuration = builder.build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("N", "F", "D", "X").setTransactionChecker(Client::check).build();
        List<Closeable> consumers = new ArrayList<>();
        for (String[] push : new String[][] {{"N", "push"}, {"F", "ordered"}}) {
            consumers.add(PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(push[1]).setSubscriptionExpressions(Map.of(push[0], FilterExpression.SUB_ALL))
                .setMessageListener(view -> {
                    got(view);
                    return ConsumeResult.SUCCESS;
                }).build());
        }
        SimpleConsumer simple = PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration)
            .setConsumerGroup("simple").setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("D", FilterExpression.SUB_ALL, "X", FilterExpression.SUB_ALL)).build();
        consumers.add(simple);

        List<Thread> senders = new ArrayList<>();
        senders.add(repeat(number -> {
            send(producer, "N", "n-" + number);
        }));
        senders.add(repeat(number -> {
            String group = number % 2 == 0 ? "a" : "b";
            String body = "f-" + group + "-" + number;
            producer.send(message("F", body).setMessageGroup(group).build());
            say("sent", "F", body);
        }));
        senders.add(repeat(number -> delayed(producer, number)));
        senders.add(repeat(number -> transaction(producer, number)));
        Thread receiver = new Thread(() -> receive(simple));
        receiver.start();

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        input.readLine();
        sending = false;
        for (Thread sender : senders) {
            sender.join();
        }
        long due = System.currentTimeMillis() + 4000;
        producer.send(message("D", "d-last-" + due).setDeliveryTimestamp(due).build());
        say("sent", "D", "d-last-" + due);
        input.readLine();
        receiving = false;
        receiver.join();
        producer.close();
        System.out.flush();
        System.exit(0); // a push consumer's close would wait for its poll
    }

    /** Sends two messages, and recalls the second one. */
    private static void delayed(Producer producer, int number) throws ClientException {
        long due = System.currentTimeMillis() + 2000;
        String body = "d-" + number + "-" + due;
        producer.send(message("D", body).setDeliveryTimestamp(due).build());
        say("sent", "D", body);
        String recalled = "d-recalled-" + number + "-" + due;
        String handle = producer.send(message("D", recalled).setDeliveryTimestamp(due + 1000).build()).getRecallHandle();
        producer.recallMessage("D", handle);
        say("recalled", "D", recalled);
    }

    /** Of three transactions one is committed, one rolled back, and one left to the broker's check. */
    private static void transaction(Producer producer, int number) throws ClientException {
        String kind = List.of("commit", "rollback", "open").get(number % 3);
        String body = "x-" + kind + "-" + number;
        Transaction transaction = producer.beginTransaction();
        producer.send(message("X", body).build(), transaction);
        say(kind.equals("rollback") ? "rolled-back" : "sent", "X", body);
        if (kind.equals("commit")) {
            transaction.commit();
        } else if (kind.equals("rollback")) {
            transaction.rollback();
        }
    }

    private static TransactionResolution check(MessageView view) {
        say("asked", "X", text(view));
        return text(view).contains("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
    }

    private static void receive(SimpleConsumer consumer) {
        while (receiving) {
            try {
                for (MessageView view : consumer.receive(32, Duration.ofSeconds(15))) {
                    got(view);
                    consumer.ack(view);
                }
            } catch (Exception e) { // a lost connection throws a StatusRuntimeException
                failed(e);
            }
        }
    }

    private static Thread repeat(Turn turn) {
        Thread thread = new Thread(() -> {
            for (int number = 0; sending; number++) {
                try {
                    turn.run(number);
                    Thread.sleep(100);
                } catch (Exception e) {
                    failed(e);
                }
            }
        });
        thread.start();
        return thread;
    }

    private static void send(Producer producer, String topic, String body) throws ClientException {
        producer.send(message(topic, body).build());
        say("sent", topic, body);
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static void got(MessageView view) {
        String body = text(view);
        boolean early = view.getTopic().equals("D")
            && System.currentTimeMillis() < Long.parseLong(body.substring(body.lastIndexOf('-') + 1));
        say(early ? "early" : "got", view.getTopic(), body);
    }

    private static String text(MessageView view) {
        ByteBuffer body = view.getBody();
        return StandardCharsets.UTF_8.decode(body).toString();
    }

    private static synchronized void say(String word, String topic, String body) {
        System.out.println(word + " " + topic + " " + body);
    }

    private static void failed(Exception e) {
        System.err.println(e);
    }
}
