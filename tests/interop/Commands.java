import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Runs mqadmin's commands in one JVM.  Each line of the standard input is a command, with tabs between its words.  Prints for each command a
    line with the number of bytes, and then what the command has printed to its output and its errors. */
public class Commands {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            PrintStream to = new PrintStream(said, true, StandardCharsets.UTF_8);
            System.setOut(to);
            System.setErr(to);
            MQAdminStartup.main0(line.split("\t"), null);
            to.flush();
            out.println(said.size());
            out.write(said.toByteArray());
            out.flush();
        }
    }
}
