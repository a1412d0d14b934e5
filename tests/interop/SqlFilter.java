import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Prints which messages RocketMQ's SQL92 filter selects.
 *
 * <pre>java -cp 'lib/*' SqlFilter.java ROWS EXPRESSIONS</pre>
 *
 * ROWS has the properties of one message a line, "name TAB value TAB name TAB value"; EXPRESSIONS one filter a line. Prints one line for each
 * filter: "invalid", or a letter for each message: t(rue), f(alse), n(ull), e(xception).
 */
public final class SqlFilter {
    public static void main(String[] args) throws Exception {
        List<EvaluationContext> rows = new ArrayList<>();
        for (String line : Files.readAllLines(Path.of(args[0]))) {
            rows.add(new Row(line.isEmpty() ? new String[0] : line.split("\t", -1)));
        }
        for (String text : Files.readAllLines(Path.of(args[1]))) {
            System.out.println(outcomes(text, rows));
        }
    }

    private static String outcomes(String text, List<EvaluationContext> rows) {
        Expression expression;
        try {
            expression = SelectorParser.parse(text);
        } catch (MQFilterException e) {
            return "invalid";
        }
        StringBuilder letters = new StringBuilder();
        for (EvaluationContext row : rows) {
            try {
                Object outcome = expression.evaluate(row);
                letters.append(outcome == null ? 'n' : (Boolean) outcome ? 't' : 'f');
            } catch (Throwable e) {
                letters.append('e');
            }
        }
        return letters.toString();
    }

    private static final class Row implements EvaluationContext {
        private final Map<String, Object> properties = new HashMap<>();

        Row(String[] words) {
            for (int i = 0; i + 1 < words.length; i += 2) {
                properties.put(words[i], words[i + 1]);
            }
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return properties;
        }
    }
}
