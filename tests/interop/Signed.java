import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/** Lets a push consumer with access keys consume 20 messages of a producer with the same keys, and give one of them back once.  Then sends with
    another secret key.  Arguments: name server, topic, group, access key, secret key.  The options of the JVM say if the clients speak TLS.
    Prints what the consumer got, and the code with which the other key was refused. */
public class Signed {
    private static final int COUNT = 20;

    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1], arguments[2], arguments[3], arguments[4]);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1); // the threads of a client that is not shut down would keep the process
        }
    }

    private static void run(String nameServer, String topic, String group, String accessKey, String secretKey) throws Exception {
        Map<String, Integer> deliveries = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, keys(accessKey, secretKey), new AllocateMessageQueueAveragely());
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName("consumer");
        consumer.setAwaitTerminationMillisWhenShutdown(20_000); // a message that is being consumed at the end is committed, too
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            int times = deliveries.merge(new String(message.getBody(), StandardCharsets.UTF_8), 1, Integer::sum);
            boolean isGivenBack = message.getKeys().equals("k0") && times == 1;
            return isGivenBack ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = producer(nameServer, group, accessKey, secretKey);
        for (int number = 0; number < COUNT; number++) producer.send(message(topic, number));
        producer.shutdown();
        for (long until = System.currentTimeMillis() + 90_000; System.currentTimeMillis() < until; Thread.sleep(100))
            if (deliveries.size() == COUNT && deliveries.get("body0") > 1) break;
        consumer.shutdown();
        long twice = deliveries.values().stream().filter(times -> times == 2).count();
        System.out.println("consumed " + deliveries.size() + " given back " + twice);

        DefaultMQProducer other = producer(nameServer, group, accessKey, secretKey + "-of-another");
        try {
            other.send(message(topic, COUNT));
            System.out.println("another secret key was accepted");
        } catch (MQBrokerException refusal) {
            System.out.println("refused " + refusal.getResponseCode());
        } catch (MQClientException refusal) { // after the producer has sent again
            System.out.println("refused " + refusal.getResponseCode());
        }
        other.shutdown();
    }

    private static DefaultMQProducer producer(String nameServer, String group, String accessKey, String secretKey) throws Exception {
        DefaultMQProducer made = new DefaultMQProducer(group + "-producers", keys(accessKey, secretKey));
        made.setNamesrvAddr(nameServer);
        made.setInstanceName("producer-with-" + secretKey); // clients with one name share the keys of the first
        made.setSendMsgTimeout(20_000);
        made.start();
        return made;
    }

    private static RPCHook keys(String accessKey, String secretKey) {
        return new AclClientRPCHook(new SessionCredentials(accessKey, secretKey));
    }

    private static Message message(String topic, int number) {
        return new Message(topic, "tag", "k" + number, ("body" + number).getBytes(StandardCharsets.UTF_8));
    }
}
