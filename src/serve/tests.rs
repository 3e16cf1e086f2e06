use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use arrow::util::display::{ArrayFormatter, FormatOptions};
use basalt_log::Durability;
use basalt_proto::{Frame, FrameBatch, FrameLimits, PartitionId, TopicName};
use futures::TryStreamExt as _;

use super::*;
use crate::config::Config;

fn config(folder: &std::path::Path) -> Config {
    Config {
        data_dir: folder.join("data"),
        listen: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        ..Config::default()
    }
}

/// What a plain HTTP/1 client gets.
async fn get(instance: &Instance, path: &str) -> String {
    let address = instance.addresses()[0];
    let request = format!("GET {path} HTTP/1.1\r\nhost: basalt\r\nconnection: close\r\n\r\n");
    tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dot_and_an_underscore_are_two_topics_in_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let instance = Instance::start(config(folder.path())).await.unwrap();
    for name in ["a.b", "a_b"] {
        let topic = TopicName::new(name).unwrap();
        instance.tiered().topic_or_create(&topic).unwrap();
        // One that nobody uses has no series.
        instance.tiered().partition(&topic, PartitionId(0)).unwrap();
    }
    let answer = get(&instance, "/metrics").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for name in ["a.b", "a_b"] {
        let line = format!("\nbasalt_high_watermark{{topic=\"{name}\",partition=\"0\"}} 0\n");
        assert!(answer.contains(&line), "{line} is missing in {answer}");
    }
    assert!(answer.contains("\nbasalt_topics 2\n"), "{answer}");
    assert!(answer.trim_end().ends_with("# EOF"), "{answer}");
    instance.stop().await.unwrap();
}

/// The rows of a statement, each as its cells with `|` between them.
async fn rows(instance: &Instance, sql: &str) -> Vec<String> {
    let rows = instance.engine().query(sql).await.unwrap();
    let batches: Vec<_> = rows.try_collect().await.unwrap();
    let mut lines = Vec::new();
    for batch in &batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &FormatOptions::default()).unwrap())
            .collect();
        for row in 0..batch.num_rows() {
            let cells: Vec<_> = columns
                .iter()
                .map(|column| column.value(row).to_string())
                .collect();
            lines.push(cells.join("|"));
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread")]
async fn system_tables_and_metrics_show_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.log.segment_bytes = 1 << 10;
    config.log.block_bytes = 1 << 10;
    let instance = Instance::start(config).await.unwrap();
    let topic = TopicName::new("t").unwrap();
    instance.tiered().topic_or_create(&topic).unwrap();
    let partition = instance.tiered().partition(&topic, PartitionId(0)).unwrap();
    let append = async || {
        let mut bytes = Vec::new();
        Frame::record(1, b"k", &[b'x'; 400]).encode_into(&mut bytes);
        let batch = FrameBatch::parse(&bytes, &FrameLimits::default()).unwrap();
        let appended = partition
            .hot()
            .append_acknowledged(&batch, Durability::Fsync);
        appended.await.unwrap();
    };
    for _ in 0..10 {
        append().await;
    }
    instance.tiered().cool_topic(&topic, true).await.unwrap();
    for _ in 0..5 {
        append().await;
    }
    // Two frames fill a segment; it is sealed by another thread.
    while partition.cooling_status().backlog_segments < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let tables = [
        ("partitions", "log_start_offset", "log_start_offset"),
        ("partitions", "cold_end_offset", "cold_end_offset"),
        ("partitions", "stable_offset", "stable_offset"),
        ("partitions", "high_watermark", "high_watermark"),
        ("partitions", "log_end_offset", "log_end_offset"),
        ("partitions", "hot_bytes", "hot_bytes"),
        ("partitions", "cold_bytes", "cold_bytes"),
        ("cooling", "backlog_segments", "cooling_backlog_segments"),
        ("cooling", "backlog_bytes", "cooling_backlog_bytes"),
        ("cooling", "cooled_segments", "cooled_segments_total"),
        ("cooling", "cooled_frame_bytes", "cooled_frame_bytes_total"),
        ("cooling", "merged_files", "merged_files_total"),
    ];
    let mut shown = Vec::new();
    for (table, column, _) in tables {
        let value = rows(&instance, &format!("SELECT {column} FROM sys.{table}")).await;
        shown.push(value.join(","));
    }
    assert_ne!(
        shown[6], "0",
        "nothing is left to be cooled, the test shows nothing"
    );
    let counts = "SELECT count(*) FILTER (WHERE state = 'finished'), count(*) FILTER (WHERE state = 'running') - 1, count(*) FILTER (WHERE state = 'queued') FROM sys.queries";
    let queries = rows(&instance, counts).await;
    let hot = rows(
        &instance,
        "SELECT count(*) FROM sys.segments WHERE tier = 'hot'",
    )
    .await;
    let cold = rows(&instance, "SELECT count(*) FROM sys.files").await;
    let answer = get(&instance, "/metrics").await;
    let has = |line: String| {
        assert!(
            answer.contains(&format!("\n{line}\n")),
            "{line} in {answer}"
        )
    };
    let labels = r#"{topic="t",partition="0"}"#;
    for ((_, _, metric), value) in tables.iter().zip(&shown) {
        has(format!("basalt_{metric}{labels} {value}"));
    }
    has(format!("basalt_hot_segments{labels} {}", hot[0]));
    has(format!("basalt_cold_files{labels} {}", cold[0]));
    // Those of the table itself, of the segments and of the files came after the count.
    let [finished, running, queued] = queries[0].split('|').collect::<Vec<_>>()[..] else {
        panic!("{queries:?}");
    };
    let finished = finished.parse::<u64>().unwrap() + 3;
    has(format!("basalt_queries_succeeded_total {finished}"));
    has(format!("basalt_queries_running {running}"));
    has(format!("basalt_queries_queued {queued}"));
    let address = instance.addresses()[0].to_string();
    let listen = rows(
        &instance,
        "SELECT value FROM sys.settings WHERE name = 'listen'",
    )
    .await;
    assert!(listen[0].contains(&address), "{listen:?} has not {address}");
    instance.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn health_is_ok_and_an_unknown_path_is_not_found() {
    let folder = tempfile::tempdir().unwrap();
    let instance = Instance::start(config(folder.path())).await.unwrap();
    assert!(get(&instance, "/healthz").await.ends_with("\r\n\r\nok\n"));
    assert!(get(&instance, "/nothing").await.starts_with("HTTP/1.1 404"));
    instance.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_says_half_of_a_word_is_disconnected() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    // `P` may become POST or the preface of HTTP/2: nothing can be decided yet.
    config.server.handshake_timeout_ms = 100;
    let instance = Instance::start(config).await.unwrap();
    let address = instance.addresses()[0];
    let rest = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"P").unwrap();
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).map(|_| rest)
    });
    assert!(rest.await.unwrap().unwrap_or_default().is_empty());
    instance.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_folder_in_use_is_refused_and_a_stopped_server_leaves_it_free() {
    let folder = tempfile::tempdir().unwrap();
    let first = Instance::start(config(folder.path())).await.unwrap();
    let error = Instance::start(config(folder.path())).await.unwrap_err();
    assert!(format!("{error:#}").contains("in use"), "{error:#}");
    first.stop().await.unwrap();
    let second = Instance::start(config(folder.path())).await.unwrap();
    second.stop().await.unwrap();
}

/// What a plain HTTP/1 client gets that shows a header.
async fn get_as(instance: &Instance, path: &str, authorization: &str) -> String {
    let path = format!("{path} HTTP/1.1\r\nauthorization: {authorization}\r\nx: y");
    // The rest of the request line becomes a header of no meaning.
    get(instance, &path).await
}

#[tokio::test(flavor = "multi_thread")]
async fn where_users_are_known_only_health_is_told_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let alice = basalt_auth::UserName::new("alice").unwrap();
    basalt_auth::Users::change(&path, |users| anyhow::Ok(users.set(alice, "wonderland")?)).unwrap();
    let mut config = config(folder.path());
    config.server.users_file = path.to_str().unwrap().to_owned();
    config.server.handshake_timeout_ms = 400;
    let instance = Instance::start(config).await.unwrap();
    for open in ["/", "/healthz"] {
        let answer = get(&instance, open).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{open}: {answer}");
    }
    let service = "/arrow.flight.protocol.FlightService";
    let methods = [
        "Handshake",
        "DoGet",
        "DoPut",
        "DoExchange",
        "DoAction",
        "GetSchema",
        "No",
    ];
    let calls = methods.map(|method| format!("{service}/{method}"));
    for closed in calls
        .iter()
        .map(String::as_str)
        .chain(["/metrics", "/no", "/healthz/.."])
    {
        let answer = get(&instance, closed).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{closed}: {answer}");
        for wrong in ["Basic YWxpY2U6d3Jvbmc=", "Bearer anonymous", "Basic", ""] {
            let answer = get_as(&instance, closed, wrong).await;
            assert!(
                answer.starts_with("HTTP/1.1 401"),
                "{closed} {wrong}: {answer}"
            );
        }
    }
    let answer = get_as(&instance, "/metrics", "Basic YWxpY2U6d29uZGVybGFuZA==").await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let strangers = format!("basalt_http_strangers_total {}\n", 5 * (methods.len() + 3));
    assert!(answer.contains(&strangers), "{answer}");
    // Who keeps a connection without logging in does not keep it for long.
    let address = instance.addresses()[0];
    let cut = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        // Well before HTTP itself would give up on it.
        let patience = std::time::Duration::from_secs(10);
        stream.set_read_timeout(Some(patience)).unwrap();
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nhost: basalt\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert!(cut.await.unwrap().starts_with("HTTP/1.1 200"));
    instance.stop().await.unwrap();
    // A start without the file fails, and says how one is made.
    let mut config = self::config(folder.path());
    config.server.users_file = folder.path().join("no").to_str().unwrap().to_owned();
    let error = format!("{:#}", Instance::start(config).await.unwrap_err());
    assert!(error.contains("basalt user add"), "{error}");
}
