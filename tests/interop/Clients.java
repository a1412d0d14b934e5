import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends 40 messages one by one and 60 in a batch, one of them with a delay level.  Reads all messages with a pull consumer, and with a lite
    pull consumer, which commits.  Arguments: name server, topic, group.  Prints a line for each thing that it has done. */
public class Clients {
    public static void main(String[] arguments) {
        try {
            run(arguments);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1); // the threads of a client that is not shut down would keep the process
        }
    }

    private static void run(String[] arguments) throws Exception {
        String nameServer = arguments[0], topic = arguments[1], group = arguments[2];
        DefaultMQProducer producer = new DefaultMQProducer("interop-producers");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        for (int number = 0; number < 39; number++) {
            SendResult sent = producer.send(message(topic, "one-" + number));
            if (number == 0)
                System.out.println("sent " + sent.getSendStatus() + " " + sent.getMsgId() + " " + sent.getOffsetMsgId());
        }
        Message delayed = message(topic, "one-39");
        delayed.setDelayTimeLevel(1);
        producer.send(delayed);
        List<Message> batch = new ArrayList<>();
        for (int number = 0; number < 60; number++) batch.add(message(topic, "batch-" + number));
        System.out.println("batch " + producer.send(batch).getSendStatus());
        producer.shutdown();

        DefaultMQPullConsumer puller = new DefaultMQPullConsumer(group);
        puller.setNamesrvAddr(nameServer);
        puller.start();
        int read = 0;
        for (long until = System.currentTimeMillis() + 60_000; read < 100 && System.currentTimeMillis() < until; ) {
            read = 0;
            for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic))
                for (long offset = puller.minOffset(queue), end = puller.maxOffset(queue); offset < end; ) {
                    PullResult pulled = puller.pull(queue, "*", offset, 32);
                    read += pulled.getMsgFoundList().size();
                    offset = pulled.getNextBeginOffset();
                }
        }
        System.out.println("pulled " + read);
        puller.shutdown();

        DefaultLitePullConsumer lite = new DefaultLitePullConsumer(group);
        lite.setNamesrvAddr(nameServer);
        lite.setAutoCommit(false);
        lite.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        lite.start();
        Collection<MessageQueue> queues = lite.fetchMessageQueues(topic);
        lite.assign(queues);
        int got = 0;
        for (long until = System.currentTimeMillis() + 60_000; got < 100 && System.currentTimeMillis() < until; ) {
            List<MessageExt> polled = lite.poll(1000);
            got += polled.size();
        }
        lite.commitSync();
        Thread.sleep(500);
        System.out.println("polled " + got);
        lite.shutdown();
    }

    private static Message message(String topic, String body) {
        return new Message(topic, "tag", body, body.getBytes(StandardCharsets.UTF_8));
    }
}
