import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends until its input has a line.  Until its input ends, consumes with a push consumer and with a pull consumer, each of its own group.
    Arguments: name server, topic, group.  Prints `sent STATUS BODY`, `pushed BODY` and `pulled BODY`.  A send that fails is not repeated with the same body. */
public class Failover {
    private static volatile boolean sends = true, runs = true;

    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1], arguments[2]);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String nameServer, String topic, String group) throws Exception {
        DefaultMQProducer producer = of(nameServer, new DefaultMQProducer(group + "-producers"));
        producer.start();
        DefaultMQPushConsumer push = of(nameServer, new DefaultMQPushConsumer(group + "-push"));
        push.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        push.subscribe(topic, "*");
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) print("pushed", message);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        DefaultLitePullConsumer pull = of(nameServer, new DefaultLitePullConsumer(group + "-pull"));
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, "*");
        pull.start();
        Thread sending = new Thread(() -> send(producer, topic));
        Thread pulling = new Thread(() -> {
            while (runs) for (MessageExt message : pull.poll(200)) print("pulled", message);
        });
        sending.start();
        pulling.start();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        input.readLine();
        sends = false;
        sending.join();
        while (input.readLine() != null) { }
        runs = false;
        pulling.join();
        producer.shutdown();
        push.shutdown();
        pull.shutdown();
    }

    private static void send(DefaultMQProducer producer, String topic) {
        for (int number = 0; sends; number++) {
            String body = "m" + number;
            try {
                SendResult result = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                System.out.println("sent " + result.getSendStatus() + " " + body);
                Thread.sleep(20);
            } catch (Exception failure) {
                System.err.println("not sent: " + failure);
            }
        }
    }

    private static <T extends ClientConfig> T of(String nameServer, T client) {
        client.setNamesrvAddr(nameServer);
        client.setPollNameServerInterval(1000);
        client.setHeartbeatBrokerInterval(1000);
        return client;
    }

    private static synchronized void print(String what, MessageExt message) {
        System.out.println(what + " " + new String(message.getBody(), StandardCharsets.UTF_8));
    }
}
