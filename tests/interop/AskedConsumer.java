import java.nio.charset.StandardCharsets;
import java.util.concurrent.ConcurrentHashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** A push consumer that runs until its standard input ends, while RocketMQ's tools ask it.  Arguments: name server, topic, group, and optionally
    the body of a message that the consumer refuses, which makes it a dead letter.  Prints `client ID`, and for each message `consumed BODY TIMES`. */
public class AskedConsumer {
    public static void main(String[] arguments) throws Exception {
        Map<String, Integer> times = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("asked");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(500);
        consumer.setAwaitTerminationMillisWhenShutdown(20_000); // a message that is being consumed at the end is committed, too
        String refused = arguments.length > 3 ? arguments[3] : null;
        if (refused != null) consumer.setMaxReconsumeTimes(0);
        consumer.subscribe(arguments[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            String body = new String(messages.get(0).getBody(), StandardCharsets.UTF_8);
            System.out.println("consumed " + body + " " + times.merge(body, 1, Integer::sum));
            return body.equals(refused) ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        System.out.println("client " + consumer.buildMQClientId());
        System.in.read();
        consumer.shutdown();
        System.exit(0);
    }
}
