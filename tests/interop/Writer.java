// Writes a store with RocketMQ's own code: java -cp 'JARS/*' Writer.java DIRECTORY COUNT, with the jars of rocketmq-store.
//
// Message i has the body "body-i", a tag, a key and an id, and is in queue i % 2.  Its topic has a name of 200 characters, or
// is "plain" if i % 3 is 0 or the version is older than 5.1.  tests/store/test_rocketmq_versions.py reads the store.

import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public class Writer {
    public static void main(String[] args) {
        int status = 1;  // the store's threads would keep the process after an exception
        try {
            write(args);
            status = 0;
        } catch (Throwable error) {
            error.printStackTrace();
        } finally {
            System.exit(status);
        }
    }

    private static void write(String[] args) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + "/commitlog");
        config.setMappedFileSizeCommitLog(64 << 10);
        config.setMappedFileSizeConsumeQueue(4000);
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(400);
        config.setHaListenPort(0);
        config.setFileReservedTime(1_000_000);
        boolean longTopics = set(config, "setMaxTopicLength", int.class, 1000);
        if (longTopics) {
            set(config, "setAutoMessageVersionOnTopicLen", boolean.class, true);
            set(config, "setTimerWheelEnable", boolean.class, false);
        }
        DefaultMessageStore store = open(config);
        if (!store.load()) throw new IllegalStateException("not loaded");
        store.start();
        for (int i = 0; i < Integer.parseInt(args[1]); i++) {
            MessageExt message = message();
            message.setTopic(longTopics && i % 3 != 0 ? "a-topic-of-200-characters".repeat(8) : "plain");
            message.setBody(("body-" + i).getBytes());
            message.setQueueId(i % 2);
            message.setBornTimestamp(1_795_200_000_000L + i);
            message.setBornHost(new InetSocketAddress("10.1.2.3", 50123));
            message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
            message.setTags(i % 2 == 0 ? "even" : "odd");
            message.setKeys("key-" + i);
            MessageAccessor.putProperty(message, "UNIQ_KEY", String.format("%032X", i));
            call(message, "setPropertiesString", String.class, MessageDecoder.messageProperties2String(message.getProperties()));
            Object result = DefaultMessageStore.class.getMethod("putMessage", message.getClass()).invoke(store, message);
            if (!result.toString().contains("PUT_OK")) throw new IllegalStateException(result.toString());
        }
        while (store.dispatchBehindBytes() > 0) Thread.sleep(10);
        store.shutdown();
    }

    private static DefaultMessageStore open(MessageStoreConfig config) throws Exception {
        MessageArrivingListener nobody = (topic, queue, offset, code, time, filter, properties) -> {};
        BrokerStatsManager stats = new BrokerStatsManager("writer", false);
        for (var made : DefaultMessageStore.class.getConstructors()) {
            if (made.getParameterCount() == 4)
                return (DefaultMessageStore) made.newInstance(config, stats, nobody, new BrokerConfig());
            return (DefaultMessageStore) made.newInstance(config, stats, nobody, new BrokerConfig(), new ConcurrentHashMap<>());
        }
        throw new IllegalStateException("no constructor");
    }

    /** The class MessageExtBrokerInner has moved between 4.9 and 5. */
    private static MessageExt message() throws Exception {
        for (String where : new String[] {"org.apache.rocketmq.common.message", "org.apache.rocketmq.store"}) {
            try {
                return (MessageExt) Class.forName(where + ".MessageExtBrokerInner").getDeclaredConstructor().newInstance();
            } catch (ClassNotFoundException elsewhere) {
                continue;
            }
        }
        throw new IllegalStateException("no MessageExtBrokerInner");
    }

    private static void call(Object on, String name, Class<?> kind, Object value) throws Exception {
        on.getClass().getMethod(name, kind).invoke(on, value);
    }

    private static boolean set(Object on, String name, Class<?> kind, Object value) throws Exception {
        try {
            call(on, name, kind, value);
            return true;
        } catch (NoSuchMethodException older) {
            return false;
        }
    }
}
