import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.utils.Utils;

/** Reads keys from standard input, one in each line, in base64. For each key, prints the hash that Kafka's Java client
 *  computes, and the same hash made positive. */
class Murmur2 {
    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        var answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int hash = Utils.murmur2(Base64.getDecoder().decode(line));
            answers.append(hash).append(' ').append(Utils.toPositive(hash)).append('\n');
        }
        System.out.print(answers);
    }
}
