import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Lets two push consumers of a group share 80 messages, and give every tenth message back once.  A third consumer, of another group, consumes
    the messages in order.  Arguments: name server, topic, group.  Prints what the consumers got. */
public class PushConsumers {
    private static final int COUNT = 80;
    private static final Map<String, AtomicInteger> deliveries = new ConcurrentHashMap<>();
    private static final AtomicInteger consumed = new AtomicInteger(), inOrder = new AtomicInteger();

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
        AtomicInteger[] shares = {new AtomicInteger(), new AtomicInteger()};
        DefaultMQPushConsumer[] members = new DefaultMQPushConsumer[2];
        for (int number = 0; number < 2; number++) {
            DefaultMQPushConsumer member = members[number] = consumer(nameServer, topic, group, "member-" + number);
            AtomicInteger share = shares[number];
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                String key = messages.get(0).getKeys();
                int times = deliveries.computeIfAbsent(key, any -> new AtomicInteger()).incrementAndGet();
                if (key.endsWith("5") && times == 1) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                share.incrementAndGet();
                consumed.incrementAndGet();
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            member.start();
        }
        DefaultMQPushConsumer orderly = consumer(nameServer, topic, group + "-orderly", "orderly");
        orderly.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            inOrder.addAndGet(messages.size());
            return ConsumeOrderlyStatus.SUCCESS;
        });
        orderly.start();
        Thread.sleep(3000);  // by then, the consumers have divided the queues
        DefaultMQProducer producer = new DefaultMQProducer("interop-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        for (int number = 0; number < COUNT; number++)
            producer.send(new Message(topic, "tag", String.format("k%03d", number), "x".getBytes(StandardCharsets.UTF_8)));
        for (long until = System.currentTimeMillis() + 90_000; System.currentTimeMillis() < until; Thread.sleep(100))
            if (consumed.get() >= COUNT && inOrder.get() >= COUNT) break;
        for (DefaultMQPushConsumer member : members) member.shutdown();
        orderly.shutdown();
        producer.shutdown();
        boolean bothTookSome = shares[0].get() > 0 && shares[1].get() > 0;
        System.out.println("consumed " + consumed.get() + " shared " + bothTookSome + " in order " + inOrder.get());
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic, String group, String name) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(name);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, "tag");
        return made;
    }
}
