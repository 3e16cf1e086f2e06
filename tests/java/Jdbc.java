import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.Objects;
import java.util.TimeZone;

/** The Arrow Flight SQL JDBC driver against a server that holds ten records, 0 to 9, in the topic "numbers", half of them cold. */
public final class Jdbc {
    private static final List<String> COLUMNS =
            List.of("_partition", "_offset", "_timestamp", "_key", "_headers", "_payload", "_record_count");

    private Jdbc() {}

    public static void main(String[] arguments) throws SQLException {
        try (Connection connection = DriverManager.getConnection(arguments[0])) {
            metadata(connection.getMetaData());
            statements(connection, Long.parseLong(arguments[1]));
            parameters(connection);
        }
    }

    private static void metadata(DatabaseMetaData metadata) throws SQLException {
        expect(column(metadata.getTables(null, "public", "%", null), "TABLE_NAME"), List.of("a_b", "numbers"), "tables");
        expect(column(metadata.getTables(null, "public", "a\\_b", null), "TABLE_NAME"), List.of("a_b"), "an escaped pattern");
        expect(column(metadata.getTables(null, "public", "n%", null), "TABLE_NAME"), List.of("numbers"), "a pattern");
        expect(column(metadata.getColumns(null, "public", "numbers", "%"), "COLUMN_NAME"), COLUMNS, "columns");
        expect(column(metadata.getSchemas(), "TABLE_SCHEM").containsAll(List.of("public", "sys")), true, "schemas");
        expect(column(metadata.getCatalogs(), "TABLE_CAT").size(), 1, "catalogs");
        expect(column(metadata.getTableTypes(), "TABLE_TYPE").isEmpty(), false, "table types");
        expect(column(metadata.getPrimaryKeys(null, "public", "numbers"), "COLUMN_NAME"), List.of(), "primary keys");
        expect(column(metadata.getImportedKeys(null, "public", "numbers"), "PKCOLUMN_NAME"), List.of(), "imported keys");
        expect(column(metadata.getExportedKeys(null, "public", "numbers"), "PKCOLUMN_NAME"), List.of(), "exported keys");
        expect(metadata.getDatabaseProductName().isEmpty(), false, "the server's name");
        // Records cannot be changed, topics can.
        expect(metadata.isReadOnly(), false, "read only");
    }

    private static void statements(Connection connection, long stampNs) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("CREATE TABLE made (n BIGINT)");
            expect(rows(statement.executeQuery("SELECT count(*), max(n) FROM made")), List.of("0|null"), "a table made by a statement");
            statement.executeUpdate("DROP TABLE made");
            expectRefused(() -> rows(statement.executeQuery("SELECT * FROM made")), "not found");
            expectRefused(() -> statement.executeUpdate("DELETE FROM numbers"), "only statements that read");
            expect(rows(statement.executeQuery("SELECT count(*), max(_offset) FROM numbers")), List.of("10|9"), "counts over hot and cold");
            try (ResultSet found = statement.executeQuery("SELECT _payload, _key, _timestamp FROM numbers WHERE _offset = 7")) {
                expect(found.next(), true, "a row");
                expect(new String(found.getBytes(1), StandardCharsets.UTF_8), "{\"n\":7}", "a payload");
                expect(found.getBytes(2), null, "an absent key");
                // This version of the driver moves what getTimestamp gives by the zone, twice, where the JVM's is not UTC.
                Instant stamp = found.getObject(3, Instant.class);
                expect(stamp, Instant.ofEpochSecond(0, stampNs), "a stamp in " + TimeZone.getDefault().getID());
                expect(found.next(), false, "one row");
            }
            expect(rows(statement.executeQuery("SELECT _payload->'n' FROM numbers WHERE _offset > 7 ORDER BY _offset")).size(), 2, "a JSON path");
            try (ResultSet none = statement.executeQuery("SELECT _offset, _payload FROM numbers WHERE false")) {
                ResultSetMetaData columns = none.getMetaData();
                // This version of the driver counts the columns of a result without rows twice.
                expect(columns.getColumnCount() > 0, true, "columns of no rows");
                expect(columns.getColumnType(1), Types.BIGINT, "type of _offset");
                expect(none.next(), false, "no rows");
            }
            expectRefused(() -> statement.executeQuery("SELECT nothing FROM nowhere"), "nowhere");
            expectRefused(() -> statement.executeUpdate("DELETE FROM numbers"), "read");
        }
    }

    private static void parameters(Connection connection) throws SQLException {
        String ranged = "SELECT ? AS tag, _offset FROM numbers WHERE _offset >= ? AND _offset < ? ORDER BY _offset";
        for (String sql : List.of(ranged, ranged.replaceFirst("\\?", "\\$1").replaceFirst("\\?", "\\$2").replaceFirst("\\?", "\\$3"))) {
            try (PreparedStatement statement = connection.prepareStatement(sql)) {
                expect(statement.getMetaData().getColumnCount(), 2, "columns before values: " + sql);
                bind(statement, "x", 2, 5);
                expect(rows(statement.executeQuery()), List.of("x|2", "x|3", "x|4"), sql);
                expect(rows(statement.executeQuery()), List.of("x|2", "x|3", "x|4"), "executed twice");
                bind(statement, "5' OR '1'='1", 8, 10);
                expect(rows(statement.executeQuery()), List.of("5' OR '1'='1|8", "5' OR '1'='1|9"), "bound anew, and a value is no SQL");
            }
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT $3 AS c, $1 AS a, $1 AS b, _offset FROM numbers WHERE _offset = $2")) {
            // Without anything that tells its type a parameter is announced as text.
            statement.setString(1, "a");
            statement.setLong(2, 4);
            statement.setString(3, "c");
            expect(rows(statement.executeQuery()), List.of("c|a|a|4"), "numbered parameters in any order, and twice");
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT ?")) {
            statement.setString(1, "alone");
            expect(rows(statement.executeQuery()), List.of("alone"), "a parameter of no known type");
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT _offset FROM numbers WHERE _offset = ?")) {
            statement.setNull(1, Types.BIGINT);
            expect(rows(statement.executeQuery()), List.of(), "NULL equals nothing");
            statement.setLong(1, 3);
            expect(rows(statement.executeQuery()), List.of("3"), "a value after NULL");
        }
        // JDBC batches are of updates. One of queries is refused, and the statement and its connection go on.
        try (PreparedStatement statement = connection.prepareStatement("SELECT _offset FROM numbers WHERE _offset = ?")) {
            for (long offset : new long[] {2, 5}) {
                statement.setLong(1, offset);
                statement.addBatch();
            }
            boolean refused = false;
            try {
                statement.executeBatch();
            } catch (SQLException expected) {
                refused = true;
            }
            expect(refused, true, "a batch of queries");
            statement.clearBatch();
            statement.setLong(1, 5);
            expect(rows(statement.executeQuery()), List.of("5"), "a query after a batch");
        }
    }

    private static void bind(PreparedStatement statement, String tag, long from, long to) throws SQLException {
        statement.setString(1, tag);
        statement.setLong(2, from);
        statement.setLong(3, to);
    }

    private static List<String> column(ResultSet found, String name) throws SQLException {
        List<String> values = new ArrayList<>();
        try (found) {
            while (found.next()) {
                values.add(found.getString(name));
            }
        }
        return values;
    }

    private static List<String> rows(ResultSet found) throws SQLException {
        List<String> rows = new ArrayList<>();
        try (found) {
            while (found.next()) {
                List<String> row = new ArrayList<>();
                for (int column = 1; column <= found.getMetaData().getColumnCount(); column++) {
                    row.add(found.getString(column));
                }
                rows.add(String.join("|", row));
            }
        }
        return rows;
    }

    private interface Call {
        void run() throws SQLException;
    }

    private static void expectRefused(Call call, String word) {
        try {
            call.run();
        } catch (SQLException error) {
            expect(error.getMessage().contains(word), true, "an error that says \"" + word + "\": " + error.getMessage());
            return;
        }
        throw new AssertionError("not refused, for \"" + word + "\"");
    }

    private static void expect(Object found, Object expected, String what) {
        if (!Objects.equals(found, expected)) {
            throw new AssertionError(what + ": " + found + ", expected " + expected);
        }
        System.out.println("ok: " + what);
    }
}
