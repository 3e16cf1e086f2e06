use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use basalt_proto::{PartitionId, TopicName};

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
