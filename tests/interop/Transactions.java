import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends three messages in transactions.  One commits, one rolls back, and one commits only when the broker asks.
    Arguments: name server, topic.  Prints a line for each thing that it has done. */
public class Transactions {
    public static void main(String[] arguments) {
        try {
            run(arguments[0], arguments[1]);
            System.exit(0);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1); // the threads of a client that is not shut down would keep the process
        }
    }

    private static void run(String nameServer, String topic) throws Exception {
        CountDownLatch asked = new CountDownLatch(1);
        TransactionMQProducer producer = new TransactionMQProducer("interop-bank");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(20_000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return (LocalTransactionState) argument;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                System.out.println("asked " + message.getTopic() + " " + new String(message.getBody(), StandardCharsets.UTF_8));
                asked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        for (LocalTransactionState state : LocalTransactionState.values()) {
            Message message = new Message(topic, state.name().getBytes(StandardCharsets.UTF_8));
            System.out.println(state + " " + producer.sendMessageInTransaction(message, state).getSendStatus());
        }
        if (!asked.await(60, TimeUnit.SECONDS)) throw new IllegalStateException("the broker did not ask");
        Thread.sleep(1000); // a thread of the producer sends the answer at an unknown time
        producer.shutdown();
    }
}
