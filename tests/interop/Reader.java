import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Reads queues with RocketMQ's own client, through its broker, and prints what it sees as JSON lines.
 *
 * <pre>java -cp 'lib/*' Reader.java NAMESRV BROKER_NAME FILE</pre>
 *
 * FILE has one request a line, tab-separated: "queue TOPIC ID" for its bounds and every message in it, "offset GROUP TOPIC ID" for
 * what the group has committed, "key TOPIC KEY" for the log offsets of the messages that the index finds, "await TOPIC COUNT" to go on
 * when queue 0 has that many messages.
 */
public final class Reader {
    private static final Set<String> ADDED_BY_THE_CLIENT = Set.of("MIN_OFFSET", "MAX_OFFSET");

    public static void main(String[] args) {
        int status = 1;
        try {
            read(args[0], args[1], Path.of(args[2]));
            status = 0;
        } catch (Throwable e) {
            e.printStackTrace();
        }
        System.out.flush();
        System.exit(status); // the client's threads would go on
    }

    private static void read(String namesrv, String broker, Path requests) throws Exception {
        Map<String, DefaultMQPullConsumer> consumers = new TreeMap<>();
        for (String line : Files.readAllLines(requests)) {
            String[] words = line.split("\t");
            String group = words[0].equals("offset") ? words[1] : "interop_reader";
            DefaultMQPullConsumer consumer = consumers.get(group);
            if (consumer == null) {
                consumer = new DefaultMQPullConsumer(group);
                consumer.setNamesrvAddr(namesrv);
                consumer.setInstanceName(group);
                consumer.setDecodeDecompressBody(false); // keeps bodies as they are stored
                consumer.start();
                awaitRoute(consumer, words[words.length - 2]);
                consumers.put(group, consumer);
            }
            if (words[0].equals("await")) {
                awaitMessages(consumer, new MessageQueue(words[1], broker, 0), Long.parseLong(words[2]));
                continue;
            }
            if (words[0].equals("key")) {
                readKey(consumer, words[1], words[2]);
                continue;
            }
            MessageQueue queue = new MessageQueue(words[words.length - 2], broker, Integer.parseInt(words[words.length - 1]));
            if (words[0].equals("queue")) {
                readQueue(consumer, queue);
            } else {
                long offset = consumer.fetchConsumeOffset(queue, true);
                System.out.println(object("kind", "offset", "group", group, "topic", queue.getTopic(), "queueId", queue.getQueueId(), "offset", offset));
            }
        }
    }

    /** A broker's port answers some seconds before the name server has all of its topics. */
    private static void awaitRoute(DefaultMQPullConsumer consumer, String topic) throws Exception {
        for (int left = 600; ; left--) {
            try {
                consumer.fetchSubscribeMessageQueues(topic);
                return;
            } catch (MQClientException e) {
                if (left == 0) {
                    throw e;
                }
                Thread.sleep(100);
            }
        }
    }

    private static void awaitMessages(DefaultMQPullConsumer consumer, MessageQueue queue, long count) throws Exception {
        for (int left = 600; consumer.maxOffset(queue) < count; left--) {
            if (left == 0) {
                throw new IllegalStateException(queue + " has " + consumer.maxOffset(queue) + " messages, not " + count);
            }
            Thread.sleep(100);
        }
    }

    private static void readQueue(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long min = consumer.minOffset(queue);
        long max = consumer.maxOffset(queue);
        System.out.println(object("kind", "queue", "topic", queue.getTopic(), "queueId", queue.getQueueId(), "minOffset", min, "maxOffset", max));
        long next = min;
        while (next < max) {
            PullResult result = consumer.pull(queue, "*", next, 32);
            if (result.getPullStatus() != PullStatus.FOUND) {
                throw new IllegalStateException(queue + " at " + next + ": " + result);
            }
            for (MessageExt message : result.getMsgFoundList()) {
                System.out.println(message(message));
            }
            next = result.getNextBeginOffset();
        }
    }

    private static void readKey(DefaultMQPullConsumer consumer, String topic, String key) throws Exception {
        List<Long> offsets = new ArrayList<>();
        try {
            for (MessageExt message : consumer.queryMessage(topic, key, 64, 0, Long.MAX_VALUE).getMessageList()) {
                offsets.add(message.getCommitLogOffset());
            }
        } catch (MQClientException e) {
            if (e.getResponseCode() != ResponseCode.NO_MESSAGE) {
                throw e;
            }
        }
        System.out.println(object("kind", "key", "topic", topic, "key", key, "offsets", offsets));
    }

    private static String message(MessageExt message) throws Exception {
        Map<String, String> properties = new TreeMap<>(message.getProperties());
        properties.keySet().removeAll(ADDED_BY_THE_CLIENT);
        MessageDigest sha1 = MessageDigest.getInstance("SHA-1");
        String body = HexFormat.of().formatHex(sha1.digest(message.getBody()));
        String offsetId = MessageDecoder.createMessageId((InetSocketAddress) message.getStoreHost(), message.getCommitLogOffset());
        return object("kind", "message", "topic", message.getTopic(), "queueId", message.getQueueId(), "queueOffset", message.getQueueOffset(),
            "commitLogOffset", message.getCommitLogOffset(), "storeSize", message.getStoreSize(), "bodyCRC", message.getBodyCRC(), "flag", message.getFlag(),
            "sysFlag", message.getSysFlag(), "bornTimestamp", message.getBornTimestamp(), "bornHost", host(message.getBornHost()),
            "storeTimestamp", message.getStoreTimestamp(), "storeHost", host(message.getStoreHost()), "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(), "offsetMsgId", offsetId, "tags", message.getTags(), "keys", message.getKeys(),
            "properties", properties, "bodySha1", body);
    }

    private static String host(Object address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + "/" + host.getPort();
    }

    /** Returns a JSON object of alternate names and values, in ASCII, which no console changes. */
    private static String object(Object... pairs) {
        StringBuilder out = new StringBuilder("{");
        for (int i = 0; i < pairs.length; i += 2) {
            out.append(i == 0 ? "" : ",").append(string((String) pairs[i])).append(':').append(value(pairs[i + 1]));
        }
        return out.append('}').toString();
    }

    private static String value(Object value) {
        if (value instanceof String) {
            return string((String) value);
        }
        if (value instanceof Map) {
            Map<?, ?> map = (Map<?, ?>) value;
            Object[] pairs = new Object[map.size() * 2];
            int i = 0;
            for (Map.Entry<?, ?> entry : map.entrySet()) {
                pairs[i++] = entry.getKey();
                pairs[i++] = entry.getValue();
            }
            return object(pairs);
        }
        return String.valueOf(value);
    }

    private static String string(String text) {
        StringBuilder out = new StringBuilder("\"");
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < ' ' || c > '~') {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        return out.append('"').toString();
    }
}
