import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lets two push consumers of a group share 81 messages.  They give every tenth message back once, and one message twice, which makes it a dead
    letter.  A third consumer, of another group, consumes the messages in order.  Arguments: name server, topic, group.  Prints what the
    consumers got. */
public class PushConsumers {
    private static final int COUNT = 80; // without the message that becomes a dead letter
    private static final String DEAD = "dead";
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
            member.setMaxReconsumeTimes(1);
            member.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                String key = messages.get(0).getKeys();
                int times = deliveries.computeIfAbsent(key, any -> new AtomicInteger()).incrementAndGet();
                if (key.equals(DEAD) || key.endsWith("5") && times == 1) return ConsumeConcurrentlyStatus.RECONSUME_LATER;
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
        for (int number = 0; number < COUNT; number++) producer.send(message(topic, String.format("k%03d", number)));
        String broker = producer.send(message(topic, DEAD)).getMessageQueue().getBrokerName();
        MessageQueue deadLetters = new MessageQueue("%DLQ%" + group, broker, 0);
        for (long until = System.currentTimeMillis() + 90_000; System.currentTimeMillis() < until; Thread.sleep(100))
            if (consumed.get() >= COUNT && inOrder.get() > COUNT && count(producer, deadLetters) > 0) break;
        for (DefaultMQPushConsumer member : members) member.shutdown();
        orderly.shutdown();
        long dead = count(producer, deadLetters);
        producer.shutdown();
        boolean bothTookSome = shares[0].get() > 0 && shares[1].get() > 0;
        System.out.println("consumed " + consumed.get() + " shared " + bothTookSome + " in order " + inOrder.get() + " dead letters " + dead);
    }

    private static Message message(String topic, String key) {
        return new Message(topic, "tag", key, "x".getBytes(StandardCharsets.UTF_8));
    }

    private static long count(DefaultMQProducer producer, MessageQueue queue) {
        try {
            return producer.maxOffset(queue);
        } catch (MQClientException failure) { // the topic does not exist yet
            return 0;
        }
    }

    private static DefaultMQPushConsumer consumer(String nameServer, String topic, String group, String name) throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer(group);
        made.setNamesrvAddr(nameServer);
        made.setInstanceName(name);
        made.setAwaitTerminationMillisWhenShutdown(20_000); // a message that is being consumed at the end is committed, too
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.subscribe(topic, "tag");
        return made;
    }
}
