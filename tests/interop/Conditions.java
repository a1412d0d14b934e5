import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Lets a push consumer and a pull consumer select among 100 messages by an SQL92 condition.  Arguments: name server, topic, group.  Prints what
    each consumer got, and the refusal of a condition that cannot be parsed. */
public class Conditions {
    private static final String CONDITION = "price > 89 AND region = 'eu'";

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
        DefaultMQProducer producer = new DefaultMQProducer("interop-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        for (int price = 0; price < 100; price++) {
            Message message = new Message(topic, Integer.toString(price).getBytes(StandardCharsets.UTF_8));
            message.putUserProperty("price", Integer.toString(price));
            message.putUserProperty("region", price % 2 == 0 ? "eu" : "us");
            producer.send(message);
        }
        producer.shutdown();

        Set<String> pushed = Collections.synchronizedSet(new TreeSet<>());
        DefaultMQPushConsumer push = push(nameServer, topic, group + "-push", CONDITION);
        push.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) pushed.add(new String(message.getBody(), StandardCharsets.UTF_8));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        push.start();
        Set<String> pulled = new TreeSet<>();
        DefaultLitePullConsumer pull = new DefaultLitePullConsumer(group + "-pull");
        pull.setNamesrvAddr(nameServer);
        pull.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        pull.subscribe(topic, MessageSelector.bySql(CONDITION));
        pull.start();
        for (long until = System.currentTimeMillis() + 90_000; System.currentTimeMillis() < until; ) {
            for (MessageExt message : pull.poll(200)) pulled.add(new String(message.getBody(), StandardCharsets.UTF_8));
            if (pushed.size() >= 5 && pulled.size() >= 5) break;
        }
        System.out.println("pushed " + pushed);
        System.out.println("pulled " + pulled);
        pull.shutdown();
        push.shutdown();
        DefaultMQPushConsumer wrong = push(nameServer, topic, group + "-wrong", "price >");
        wrong.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        try {
            wrong.start();
            System.out.println("a wrong condition was accepted");
        } catch (MQClientException refusal) {
            System.out.println("refused " + refusal.getResponseCode());
        }
    }

    private static DefaultMQPushConsumer push(String nameServer, String topic, String group, String condition) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, MessageSelector.bySql(condition));
        return made;
    }
}
