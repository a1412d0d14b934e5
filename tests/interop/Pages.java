import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.admin.OffsetWrapper;
import org.apache.rocketmq.remoting.protocol.admin.TopicOffset;
import org.apache.rocketmq.remoting.protocol.body.ClusterInfo;
import org.apache.rocketmq.remoting.protocol.body.Connection;
import org.apache.rocketmq.remoting.protocol.body.ConsumerConnection;
import org.apache.rocketmq.remoting.protocol.body.SubscriptionGroupWrapper;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.admin.api.MessageTrack;
import org.apache.rocketmq.tools.command.CommandUtil;

/** Sends the requests of RocketMQ's dashboard, page by page and in the dashboard's order and with its defaults, among them the VIP channel.
    Prints a line of JSON for each page with what the page would show, or with the error that it would show.

    Arguments: name server, topic, a group that pops, and a group that has committed and that the last page deletes.  The topic has a message
    with the key `key0`. */
public class Pages {
    private static final String ADDED = "added-by-a-form";
    private static final String TRACES = "RMQ_SYS_TRACE_TOPIC";
    private static final long TIMEOUT_MS = 20_000;

    private interface Page {
        void fill(Map<String, Object> shown) throws Exception;
    }

    private final String nameServer, topic, popping, committing;
    private final DefaultMQAdminExt admin;
    private final DefaultMQPullConsumer reader;
    private final DefaultMQProducer systemTopics;
    private ClusterInfo cluster; // the dashboard keeps it for 30 s
    private String sentId;

    public static void main(String[] arguments) {
        // The dashboard's default for its admin client.  If its configuration says so, too, it sets this property, which covers producers.
        System.setProperty(ClientConfig.SEND_MESSAGE_WITH_VIP_CHANNEL_PROPERTY, "true");
        int status = 1;
        try {
            new Pages(arguments).showAll();
            status = 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
        }
        System.out.flush();
        System.exit(status); // the threads of clients would keep the process
    }

    private Pages(String[] arguments) throws Exception {
        nameServer = arguments[0];
        topic = arguments[1];
        popping = arguments[2];
        committing = arguments[3];
        admin = at(new DefaultMQAdminExt(), "admin");
        admin.start();
        reader = at(new DefaultMQPullConsumer(MixAll.TOOLS_CONSUMER_GROUP), "reader");
        reader.start();
        systemTopics = at(new DefaultMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP), "system-topics");
        systemTopics.start();
        cluster = admin.examineBrokerClusterInfo();
    }

    private <T extends ClientConfig> T at(T client, String instance) {
        client.setNamesrvAddr(nameServer);
        client.setInstanceName(instance);
        return client;
    }

    private void showAll() {
        show("cluster", this::showCluster);
        show("topics", this::showTopics);
        show("topic add", this::addTopic);
        show("topic status", this::showStatus);
        show("topic route", this::showRoute);
        show("topic consumers", this::showConsumersOfTopic);
        show("topic config", this::changeTopic);
        show("topic send", this::send);
        show("topic reset", shown -> reset(shown, 0));
        show("topic skip", shown -> reset(shown, -1));
        show("topic delete", this::deleteTopic);
        show("consumers", this::showGroups);
        show("consumer clients", this::showClients);
        show("consumer config", this::changeGroup);
        show("messages by time", shown -> shown.put("messages", messagesByTime(topic)));
        show("messages by key", shown -> shown.put("messages", views(messagesByKey())));
        show("message by id", this::showMessage);
        show("message trace", this::showTrace);
        show("retry topic", this::showRetryTopic);
        show("dead letters", shown -> shown.put("messages", deadLetters(popping)));
        show("no dead letters", shown -> shown.put("messages", deadLetters(committing)));
        show("producers", this::showProducers);
        show("consumer delete", this::deleteGroup);
    }

    private static void show(String name, Page page) {
        Map<String, Object> shown = new LinkedHashMap<>();
        shown.put("page", name);
        try {
            page.fill(shown);
        } catch (Throwable error) {
            shown.put("error", error.toString());
        }
        System.out.println(RemotingSerializable.toJson(shown, false));
    }

    // ---- Cluster ----

    private void showCluster(Map<String, Object> shown) throws Exception {
        ClusterInfo now = admin.examineBrokerClusterInfo();
        Map<String, Object> brokers = new TreeMap<>();
        for (BrokerData broker : now.getBrokerAddrTable().values())
            for (Map.Entry<Long, String> member : broker.getBrokerAddrs().entrySet()) {
                Map<String, String> figures = admin.fetchBrokerRuntimeStats(member.getValue()).getTable();
                Map<String, Object> row = new TreeMap<>();
                row.put("address", member.getValue());
                row.put("role", admin.getBrokerConfig(member.getValue()).getProperty("brokerRole"));
                row.put("received", Long.parseLong(figures.get("msgPutTotalTodayNow")) - Long.parseLong(figures.get("msgPutTotalTodayMorning")));
                row.put("given", Long.parseLong(figures.get("msgGetTotalTodayNow")) - Long.parseLong(figures.get("msgGetTotalTodayMorning")));
                row.put("version", figures.get("brokerVersionDesc"));
                row.put("rates", figures.containsKey("putTps") && figures.get("getTotalTps").contains(" "));
                brokers.put(broker.getBrokerName() + " " + member.getKey(), row);
            }
        Map<String, Object> clusters = new TreeMap<>();
        for (Map.Entry<String, Set<String>> one : now.getClusterAddrTable().entrySet()) clusters.put(one.getKey(), new ArrayList<>(one.getValue()));
        shown.put("clusters", clusters);
        shown.put("brokers", brokers);
    }

    // ---- Topic ----

    private void showTopics(Map<String, Object> shown) throws Exception {
        shown.put("types", typesByTopic());
    }

    private Map<String, String> typesByTopic() throws Exception {
        Set<String> system = systemTopics.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .getSystemTopicList(TIMEOUT_MS).getTopicList();
        Map<String, String> types = new TreeMap<>();
        for (BrokerData broker : cluster.getBrokerAddrTable().values())
            for (TopicConfig config : admin.getAllTopicConfig(broker.getBrokerAddrs().get(MixAll.MASTER_ID), 10_000).getTopicConfigTable().values())
                types.put(config.getTopicName(), type(config, system));
        return types;
    }

    private static String type(TopicConfig config, Set<String> system) {
        String name = config.getTopicName();
        if (name.startsWith("%R")) return "RETRY";
        if (name.startsWith("%D")) return "DLQ";
        if (system.contains(name) || name.startsWith("rmq_sys")) return "SYSTEM";
        return messageType(config);
    }

    private static String messageType(TopicConfig config) {
        Map<String, String> attributes = config.getAttributes();
        return attributes == null ? "UNSPECIFIED" : attributes.getOrDefault("message.type", "UNSPECIFIED");
    }

    private void addTopic(Map<String, Object> shown) throws Exception {
        TopicConfig form = new TopicConfig(ADDED);
        form.setWriteQueueNums(8);
        form.setReadQueueNums(8);
        form.setPerm(7);
        commit(form, "NORMAL");
        for (BrokerData broker : cluster.getBrokerAddrTable().values())
            describe(admin.examineTopicConfig(broker.selectBrokerAddr(), ADDED), shown);
    }

    private void commit(TopicConfig config, String type) throws Exception {
        config.setAttributes(Map.of("+message.type", type));
        for (BrokerData broker : admin.examineBrokerClusterInfo().getBrokerAddrTable().values())
            admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), config);
    }

    private static void describe(TopicConfig config, Map<String, Object> shown) {
        shown.put("read queues", config.getReadQueueNums());
        shown.put("write queues", config.getWriteQueueNums());
        shown.put("perm", config.getPerm());
        shown.put("type", messageType(config));
    }

    private void showStatus(Map<String, Object> shown) throws Exception {
        for (Map.Entry<MessageQueue, TopicOffset> one : admin.examineTopicStats(topic).getOffsetTable().entrySet()) {
            TopicOffset offsets = one.getValue();
            shown.put(name(one.getKey()), List.of(offsets.getMinOffset(), offsets.getMaxOffset(), offsets.getLastUpdateTimestamp()));
        }
    }

    private static String name(MessageQueue queue) {
        return queue.getBrokerName() + " " + queue.getQueueId();
    }

    private void showRoute(Map<String, Object> shown) throws Exception {
        TopicRouteData route = admin.examineTopicRouteInfo(topic);
        Map<String, Object> brokers = new TreeMap<>();
        for (BrokerData broker : route.getBrokerDatas())
            for (Map.Entry<Long, String> member : broker.getBrokerAddrs().entrySet())
                brokers.put(broker.getBrokerName() + " " + member.getKey(), member.getValue());
        Map<String, Object> queues = new TreeMap<>();
        for (QueueData one : route.getQueueDatas())
            queues.put(one.getBrokerName(), List.of(one.getReadQueueNums(), one.getWriteQueueNums(), one.getPerm()));
        shown.put("brokers", brokers);
        shown.put("queues", queues);
    }

    private void showConsumersOfTopic(Map<String, Object> shown) throws Exception {
        for (String group : admin.queryTopicConsumeByWho(topic).getGroupList()) {
            Map<String, Object> rows = new TreeMap<>();
            for (Map.Entry<MessageQueue, OffsetWrapper> one : admin.examineConsumeStats(group, topic).getOffsetTable().entrySet())
                if (one.getKey().getTopic().equals(topic))
                    rows.put(name(one.getKey()), List.of(one.getValue().getBrokerOffset(), one.getValue().getConsumerOffset()));
            try {
                for (Connection client : admin.examineConsumerConnectionInfo(group).getConnectionSet())
                    admin.getConsumerRunningInfo(group, client.getClientId(), false);
            } catch (MQClientException refused) {
                // The page then shows no client for the queues.
            }
            shown.put(group, rows);
        }
    }

    private void changeTopic(Map<String, Object> shown) throws Exception {
        for (BrokerData broker : admin.examineTopicRouteInfo(topic).getBrokerDatas()) {
            String address = cluster.getBrokerAddrTable().get(broker.getBrokerName()).selectBrokerAddr();
            TopicConfig config = admin.examineTopicConfig(address, topic);
            config.setReadQueueNums(3);
            commit(config, messageType(config));
            describe(admin.examineTopicConfig(address, topic), shown);
        }
    }

    private void send(Map<String, Object> shown) throws Exception {
        DefaultMQProducer producer = at(new DefaultMQProducer(MixAll.SELF_TEST_PRODUCER_GROUP, true, TRACES), "send");
        producer.start();
        SendResult sent = producer.send(new Message(topic, "sent", "sent-key", bytes("from the page")));
        sentId = sent.getMsgId();
        shown.put("status", sent.getSendStatus().name());
        // The producer stays open, because it sends its traces in the background.
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private void reset(Map<String, Object> shown, long timestamp) throws Exception {
        Map<String, Object> offsets = new TreeMap<>();
        for (Map.Entry<MessageQueue, Long> one : admin.resetOffsetByTimestamp(topic, committing, timestamp, true).entrySet())
            offsets.put(name(one.getKey()), one.getValue());
        shown.put("offsets", offsets);
        shown.put("lag", admin.examineConsumeStats(committing, topic).computeTotalDiff());
    }

    private void deleteTopic(Map<String, Object> shown) throws Exception {
        for (String clusterName : admin.examineBrokerClusterInfo().getClusterAddrTable().keySet()) {
            admin.deleteTopicInBroker(CommandUtil.fetchMasterAddrByClusterName(admin, clusterName), ADDED);
            admin.deleteTopicInNameServer(Set.of(nameServer), ADDED);
        }
        shown.put("is there", typesByTopic().containsKey(ADDED));
    }

    // ---- Consumer ----

    private void showGroups(Map<String, Object> shown) throws Exception {
        SubscriptionGroupWrapper last = null;
        Map<String, SubscriptionGroupConfig> groups = new TreeMap<>();
        for (BrokerData broker : cluster.getBrokerAddrTable().values()) {
            last = admin.getAllSubscriptionGroup(broker.selectBrokerAddr(), 30_000);
            groups.putAll(last.getSubscriptionGroupTable());
        }
        if (last == null || last.getSubscriptionGroupTable().isEmpty())
            throw new IllegalStateException("No consumer group information available");
        for (Map.Entry<String, SubscriptionGroupConfig> one : groups.entrySet()) shown.put(one.getKey(), row(one.getKey(), one.getValue()));
    }

    private Map<String, Object> row(String group, SubscriptionGroupConfig config) {
        Map<String, Object> row = new TreeMap<>();
        row.put("type", group.equals(MixAll.TOOLS_CONSUMER_GROUP) ? "SYSTEM" : config.isConsumeMessageOrderly() ? "FIFO" : "NORMAL");
        try {
            row.put("lag", admin.examineConsumeStats(group).computeTotalDiff());
        } catch (Exception unknown) {
            // The page shows 0, as for a group that has never consumed.
        }
        try {
            ConsumerConnection connection = admin.examineConsumerConnectionInfo(group);
            row.put("quantity", connection.getConnectionSet().size());
            row.put("mode", connection.getMessageModel().name());
            row.put("consume type", connection.getConsumeType().name());
            row.put("version", MQVersion.getVersionDesc(connection.computeMinVersion()));
        } catch (Exception notOnline) {
            row.put("quantity", 0);
        }
        return row;
    }

    private void showClients(Map<String, Object> shown) throws Exception {
        String address = cluster.getBrokerAddrTable().values().iterator().next().selectBrokerAddr();
        ConsumerConnection connection = admin.examineConsumerConnectionInfo(popping, address);
        shown.put("clients", clients(connection.getConnectionSet()));
        shown.put("mode", connection.getMessageModel().name());
        shown.put("subscriptions", connection.getSubscriptionTable().size());
    }

    private static List<String> clients(Set<Connection> connections) {
        List<String> found = new ArrayList<>();
        for (Connection one : connections) found.add(one.getClientId() + " " + one.getLanguage() + " " + MQVersion.getVersionDesc(one.getVersion()));
        return found;
    }

    private void changeGroup(Map<String, Object> shown) throws Exception {
        for (BrokerData broker : cluster.getBrokerAddrTable().values()) {
            SubscriptionGroupConfig config = config(broker, popping);
            config.setRetryMaxTimes(7);
            admin.createAndUpdateSubscriptionGroupConfig(broker.selectBrokerAddr(), config);
            SubscriptionGroupConfig changed = config(broker, popping);
            List<Long> delays = new ArrayList<>();
            for (long delay : changed.getGroupRetryPolicy().getCustomizedRetryPolicy().getNext()) delays.add(delay);
            shown.put("retries", changed.getRetryMaxTimes());
            shown.put("delays", delays);
        }
    }

    private SubscriptionGroupConfig config(BrokerData broker, String group) throws Exception {
        return admin.getAllSubscriptionGroup(broker.selectBrokerAddr(), TIMEOUT_MS).getSubscriptionGroupTable().get(group);
    }

    private void deleteGroup(Map<String, Object> shown) throws Exception {
        for (BrokerData broker : cluster.getBrokerAddrTable().values()) {
            admin.deleteSubscriptionGroup(broker.selectBrokerAddr(), committing, true);
            for (String prefix : List.of(MixAll.RETRY_GROUP_TOPIC_PREFIX, MixAll.DLQ_GROUP_TOPIC_PREFIX)) {
                admin.deleteTopicInBroker(Set.of(broker.selectBrokerAddr()), prefix + committing);
                admin.deleteTopicInNameServer(Set.of(nameServer), prefix + committing);
            }
            shown.put("is there", config(broker, committing) != null);
        }
    }

    // ---- Message and DLQ ----

    /** Returns the messages of the last hour, as the first page of the search finds them. */
    private List<String> messagesByTime(String topic) throws Exception {
        long end = System.currentTimeMillis(), begin = end - 3_600_000;
        List<String> found = new ArrayList<>();
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(topic)) {
            long from = reader.searchOffset(queue, begin), to = reader.searchOffset(queue, end);
            while (from < to) {
                PullResult pulled = reader.pull(queue, "*", from, 32);
                if (pulled.getPullStatus() != PullStatus.FOUND) break;
                for (MessageExt message : pulled.getMsgFoundList())
                    if (message.getStoreTimestamp() >= begin && message.getStoreTimestamp() <= end) found.add(view(message));
                from = pulled.getNextBeginOffset();
            }
        }
        found.sort(null);
        return found;
    }

    private List<MessageExt> messagesByKey() throws Exception {
        return admin.queryMessage(topic, "key0", 64, 0, System.currentTimeMillis()).getMessageList();
    }

    private static List<String> views(List<MessageExt> messages) {
        List<String> found = new ArrayList<>();
        for (MessageExt message : messages) found.add(view(message));
        return found;
    }

    private static String view(MessageExt message) {
        return message.getTags() + " " + message.getKeys() + " " + new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private void showMessage(Map<String, Object> shown) throws Exception {
        for (String id : List.of(messagesByKey().get(0).getMsgId(), sentId))
            for (String clusterName : admin.getTopicClusterList(topic)) {
                MessageExt message = admin.queryMessageByUniqKey(clusterName, topic, id, 32, 0, Long.MAX_VALUE).getMessageList().get(0);
                Map<String, Object> tracks = new TreeMap<>();
                for (MessageTrack track : admin.messageTrackDetail(message)) tracks.put(track.getConsumerGroup(), track.getTrackType().name());
                shown.put(view(message), tracks);
            }
    }

    /** Shows the traces of the message that the page `topic send` has sent. */
    private void showTrace(Map<String, Object> shown) throws Exception {
        for (long until = System.currentTimeMillis() + TIMEOUT_MS; ; Thread.sleep(100))
            try {
                List<String> traces = new ArrayList<>();
                for (MessageExt found : admin.queryMessage(TRACES, sentId, 64, 0, System.currentTimeMillis()).getMessageList())
                    for (TraceContext one : TraceDataEncoder.decoderFromTraceDataString(new String(found.getBody(), StandardCharsets.UTF_8)))
                        traces.add(one.getTraceType() + " " + one.getGroupName() + " " + one.getTraceBeans().get(0).getKeys());
                shown.put("traces", traces);
                return;
            } catch (MQClientException missing) {
                if (System.currentTimeMillis() > until) throw missing;
            }
    }

    /** Shows the messages of a retry topic that is in the list of topics.  The page pulls even if the bounds are equal. */
    private void showRetryTopic(Map<String, Object> shown) throws Exception {
        String retries = MixAll.getRetryTopic(committing);
        shown.put("is listed", admin.fetchAllTopicList().getTopicList().contains(retries));
        shown.put("messages", messagesByTime(retries));
        for (MessageQueue queue : reader.fetchSubscribeMessageQueues(retries))
            shown.put("status", reader.pull(queue, "*", reader.searchOffset(queue, 0), 32).getPullStatus().name());
    }

    private List<String> deadLetters(String group) throws Exception {
        String letters = MixAll.getDLQTopic(group);
        try {
            admin.examineTopicRouteInfo(letters);
        } catch (MQClientException refused) {
            if (refused.getResponseCode() == ResponseCode.TOPIC_NOT_EXIST) return List.of();
            throw refused;
        }
        return messagesByTime(letters);
    }

    // ---- Producer ----

    private void showProducers(Map<String, Object> shown) throws Exception {
        DefaultMQProducer producer = at(new DefaultMQProducer("shop"), "shop");
        producer.start();
        try {
            producer.send(new Message(topic, "shop", "shop-key", bytes("from the shop")));
            producer.getDefaultMQProducerImpl().getMqClientFactory().sendHeartbeatToAllBrokerWithLock(); // else only after 30 s
            shown.put("clients", clients(admin.examineProducerConnectionInfo("shop", topic).getConnectionSet()));
        } finally {
            producer.shutdown();
        }
    }
}
