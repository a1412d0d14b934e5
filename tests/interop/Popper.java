import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.AckCallback;
import org.apache.rocketmq.client.consumer.AckResult;
import org.apache.rocketmq.client.consumer.AckStatus;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PopCallback;
import org.apache.rocketmq.client.consumer.PopResult;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.constant.ConsumeInitMode;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.header.AckMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ChangeInvisibleTimeRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.remoting.protocol.header.PopMessageRequestHeader;

/**
 * Sends and pops with RocketMQ's own client, and prints what it got as JSON lines.
 *
 * <pre>java -cp 'lib/*' Popper.java NAMESRV BROKER_NAME FILE</pre>
 *
 * FILE has one request a line, tab-separated: "send TOPIC QUEUE BODY", "pop GROUP TOPIC COUNT INVISIBLE_MS" until it has that many
 * messages, "ack GROUP BODY" and "change GROUP BODY INVISIBLE_MS" for the last delivery of that message.
 */
public final class Popper {
    private static final long CALL_MS = 20_000;

    private final String broker;
    private final MQClientInstance factory;
    private final DefaultMQProducer producer;
    private final Map<String, MessageExt> delivered = new HashMap<>();

    public static void main(String[] args) {
        int status = 1;
        try {
            new Popper(args[0], args[1]).run(Path.of(args[2]));
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.out.flush();
        System.exit(status); // the client's threads would go on
    }

    private Popper(String namesrv, String broker) throws Exception {
        this.broker = broker;
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer("interop_popper");
        consumer.setNamesrvAddr(namesrv);
        consumer.start();
        factory = consumer.getDefaultMQPullConsumerImpl().getRebalanceImpl().getmQClientFactory();
        producer = new DefaultMQProducer("interop_producer");
        producer.setNamesrvAddr(namesrv);
        producer.start();
    }

    private void run(Path requests) throws Exception {
        for (String line : Files.readAllLines(requests)) {
            String[] words = line.split("\t");
            if (words[0].equals("send")) {
                awaitRoute(words[1]);
                MessageQueue queue = new MessageQueue(words[1], broker, Integer.parseInt(words[2]));
                producer.send(new Message(words[1], words[3].getBytes()), queue, CALL_MS);
            } else if (words[0].equals("pop")) {
                awaitRoute(words[2]);
                pop(words[1], words[2], Integer.parseInt(words[3]), Long.parseLong(words[4]));
            } else if (words[0].equals("ack")) {
                ack(words[1], delivered.get(words[1] + " " + words[2]));
            } else if (words[0].equals("change")) {
                change(words[1], delivered.get(words[1] + " " + words[2]), Long.parseLong(words[3]));
            } else {
                throw new IllegalArgumentException(line);
            }
        }
    }

    /** A broker's port answers some seconds before the name server has all of its topics. */
    private void awaitRoute(String topic) throws Exception {
        for (int left = 600; ; left--) {
            try {
                producer.fetchPublishMessageQueues(topic);
                factory.updateTopicRouteInfoFromNameServer(topic);
                return;
            } catch (MQClientException e) {
                if (left == 0) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    private void pop(String group, String topic, int count, long invisibleMs) throws Exception {
        for (int left = 600, got = 0; got < count; left--) {
            if (left == 0) {
                throw new IllegalStateException("got " + got + " of " + count + " messages of " + topic);
            }
            PopMessageRequestHeader header = new PopMessageRequestHeader();
            header.setConsumerGroup(group);
            header.setTopic(topic);
            header.setQueueId(-1);
            header.setMaxMsgNums(Math.min(32, count - got));
            header.setInvisibleTime(invisibleMs);
            header.setPollTime(0);
            header.setBornTime(System.currentTimeMillis());
            header.setInitMode(ConsumeInitMode.MIN);
            header.setExpType("TAG");
            header.setExp("*");
            header.setOrder(false);
            CompletableFuture<PopResult> answer = new CompletableFuture<>();
            api().popMessageAsync(broker, address(), header, CALL_MS, new PopCallback() {
                @Override
                public void onSuccess(PopResult result) {
                    answer.complete(result);
                }

                @Override
                public void onException(Throwable e) {
                    answer.completeExceptionally(e);
                }
            });
            PopResult result = answer.get(CALL_MS, TimeUnit.MILLISECONDS);
            if (result.getMsgFoundList() == null || result.getMsgFoundList().isEmpty()) {
                Thread.sleep(100);
                continue;
            }
            for (MessageExt message : result.getMsgFoundList()) {
                String body = new String(message.getBody());
                delivered.put(group + " " + body, message);
                System.out.println("{\"body\":\"" + body + "\",\"attempt\":" + (message.getReconsumeTimes() + 1) + "}");
                got++;
            }
        }
    }

    private void ack(String group, MessageExt message) throws Exception {
        Handle handle = new Handle(group, message);
        AckMessageRequestHeader header = new AckMessageRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(handle.topic);
        header.setQueueId(handle.queueId);
        header.setOffset(handle.offset);
        header.setExtraInfo(handle.text);
        Answer answer = new Answer();
        api().ackMessageAsync(address(), CALL_MS, answer, header);
        answer.await();
    }

    private void change(String group, MessageExt message, long invisibleMs) throws Exception {
        Handle handle = new Handle(group, message);
        ChangeInvisibleTimeRequestHeader header = new ChangeInvisibleTimeRequestHeader();
        header.setConsumerGroup(group);
        header.setTopic(handle.topic);
        header.setQueueId(handle.queueId);
        header.setOffset(handle.offset);
        header.setExtraInfo(handle.text);
        header.setInvisibleTime(invisibleMs);
        Answer answer = new Answer();
        api().changeInvisibleTimeAsync(broker, address(), header, CALL_MS, answer);
        AckResult result = answer.await();
        message.getProperties().put(MessageConst.PROPERTY_POP_CK, result.getExtraInfo());
    }

    private MQClientAPIImpl api() {
        return factory.getMQClientAPIImpl();
    }

    private String address() {
        return factory.findBrokerAddressInPublish(broker);
    }

    /** The fields of a delivery's handle. */
    private static final class Handle {
        final String text;
        final String topic;
        final int queueId;
        final long offset;

        Handle(String group, MessageExt message) {
            text = message.getProperty(MessageConst.PROPERTY_POP_CK);
            String[] fields = ExtraInfoUtil.split(text);
            topic = ExtraInfoUtil.getRealTopic(fields, message.getTopic(), group);
            queueId = ExtraInfoUtil.getQueueId(fields);
            offset = ExtraInfoUtil.getQueueOffset(fields);
        }
    }

    private static final class Answer implements AckCallback {
        private final CompletableFuture<AckResult> result = new CompletableFuture<>();

        @Override
        public void onSuccess(AckResult answer) {
            result.complete(answer);
        }

        @Override
        public void onException(Throwable e) {
            result.completeExceptionally(e);
        }

        private AckResult await() throws Exception {
            AckResult answer = result.get(CALL_MS, TimeUnit.MILLISECONDS);
            if (answer.getStatus() != AckStatus.OK) {
                throw new IllegalStateException("" + answer);
            }
            return answer;
        }
    }
}
