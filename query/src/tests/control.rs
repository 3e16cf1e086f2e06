//! Who runs, who waits, who is told to stop, and what is left afterwards.

use std::sync::Arc;
use std::time::Duration;

use arrow_flight::sql::{ActionCancelQueryRequest, CommandStatementQuery, ProstMessageExt};
use arrow_flight::{
    Action, CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo,
};
use basalt_proto::Frame;
use futures::{StreamExt, TryStreamExt};
use prost::Message;
use tonic::Code;

use super::flight::{Other, Serving, serving, serving_over};
use super::{Fixture, eventually};
use crate::{QueryConfig, QueryError, QueryStream};

/// Rows without end.
const ENDLESS: &str = "SELECT value FROM generate_series(1, 9223372036854775806)";
/// Work without end, and without a row.
const BUSY: &str = "SELECT count(*) FROM generate_series(1, 100000) a CROSS JOIN generate_series(1, 100000) b \
                    CROSS JOIN generate_series(1, 100000) c";

fn narrow(max_concurrent: usize, max_queued: usize) -> QueryConfig {
    QueryConfig {
        max_concurrent,
        max_queued,
        target_partitions: 2,
        ..QueryConfig::default()
    }
}

/// A query that runs, with its first row taken.
async fn running(fixture: &Fixture) -> QueryStream {
    let mut rows = fixture.engine.query(ENDLESS).await.unwrap();
    assert!(rows.next().await.unwrap().is_ok());
    rows
}

async fn states(fixture: &Fixture) -> Vec<String> {
    fixture
        .rows("SELECT state FROM sys.queries WHERE sql LIKE '%generate_series%' AND sql NOT LIKE '%sys.queries%'")
        .await
}

#[tokio::test]
async fn who_finds_no_place_waits_and_who_finds_too_many_waiting_is_refused() {
    let fixture = Arc::new(Fixture::with_config(narrow(1, 1)).await);
    let first = running(&fixture).await;
    let second = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move {
            fixture
                .rows("SELECT count(*) FROM generate_series(1, 3)")
                .await
        }
    });
    eventually("the second waits", || fixture.engine.counters().queued == 1).await;
    let error = fixture
        .error("SELECT count(*) FROM generate_series(1, 4)")
        .await;
    assert!(
        matches!(
            error,
            QueryError::Busy {
                running: 1,
                waiting: 1,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(error.status().code(), Code::Unavailable);
    // Whoever looks at the server waits for nobody, and can end what is in the way.
    assert_eq!(states(&fixture).await, ["running", "queued", "failed"]);
    assert_eq!(fixture.engine.counters().running, 1);
    let cancel = format!("CANCEL '{}'", first.id());
    assert_eq!(fixture.rows(&cancel).await, ["true"]);
    let ended: Result<Vec<_>, _> = first.try_collect().await;
    assert!(matches!(ended, Err(QueryError::Cancelled)), "{ended:?}");
    assert_eq!(second.await.unwrap(), ["3"]);
    assert_eq!(states(&fixture).await, ["cancelled", "finished", "failed"]);
}

#[tokio::test]
async fn only_what_runs_is_cancelled_and_planning_cancels_nothing() {
    let fixture = Fixture::new().await;
    let mut rows = running(&fixture).await;
    let cancel = format!("CANCEL '{}'", rows.id());
    let explained = format!("EXPLAIN SELECT cancel_query('{}')", rows.id());
    assert!(!fixture.rows(&explained).await.is_empty());
    fixture
        .engine
        .describe(crate::parameters::Query::plain(&cancel))
        .await
        .unwrap();
    assert!(rows.next().await.unwrap().is_ok());
    drop(rows);
    eventually("it ended", || fixture.engine.counters().cancelled == 1).await;
    for sql in [
        cancel.as_str(),
        "CANCEL 'nonsense'",
        "CANCEL '0000000000000001-1'",
    ] {
        assert_eq!(fixture.rows(sql).await, ["false"], "{sql}");
    }
}

#[tokio::test]
async fn a_query_that_ended_is_listed_with_what_it_did() {
    let fixture = Fixture::new().await;
    fixture.create("t", 1, 1 << 20).await;
    for cold in [true, false] {
        fixture
            .append("t", 0, &[Frame::record(1, b"", b"hello"); 50])
            .await;
        if cold {
            fixture.cool("t").await;
        }
    }
    let mut rows = fixture
        .engine
        .query("SELECT _payload FROM t")
        .await
        .unwrap();
    let (id, snapshot) = (rows.id(), rows.snapshot().unwrap().to_owned());
    while rows.next().await.is_some() {}
    eventually("it ended", || fixture.engine.counters().succeeded == 1).await;
    let line = format!(
        "SELECT state, sql, rows, bytes_scanned > 1700, memory_bytes, progress, snapshot, error, ended_at >= started_at FROM sys.queries WHERE query_id = '{id}'"
    );
    let expected = format!("finished|SELECT _payload FROM t|100|true|0|1.0|{snapshot}||true");
    assert_eq!(fixture.rows(&line).await, [expected]);
    fixture.error("SELECT 1 / 0").await;
    let failed = "SELECT state, error LIKE '%ivide by zero%', snapshot FROM sys.queries WHERE sql = 'SELECT 1 / 0'";
    assert_eq!(fixture.rows(failed).await, ["failed|true|"]);
}

#[tokio::test]
async fn sys_queries_has_the_numbers_of_the_metrics() {
    let fixture = Fixture::with_config(narrow(2, 8)).await;
    let held = [running(&fixture).await, running(&fixture).await];
    let engine = Arc::clone(&fixture.engine);
    let waiting = tokio::spawn(async move { engine.query(ENDLESS).await });
    eventually("one waits", || fixture.engine.counters().queued == 1).await;
    let sql = "SELECT count(*) FILTER (WHERE state = 'running' AND sql NOT LIKE '%sys.queries%'), count(*) FILTER (WHERE state = 'queued') FROM sys.queries";
    let shown = fixture.rows(sql).await;
    let counters = fixture.engine.counters();
    assert_eq!(shown, [format!("{}|{}", counters.running, counters.queued)]);
    assert_eq!(shown, ["2|1"]);
    drop(held);
    waiting.abort();
    eventually("all ended", || {
        let counters = fixture.engine.counters();
        counters.running + counters.queued == 0
    })
    .await;
    let sql = "SELECT count(*) FILTER (WHERE state = 'finished'), count(*) FILTER (WHERE state = 'failed'), count(*) FILTER (WHERE state = 'cancelled') FROM sys.queries";
    let counters = fixture.engine.counters();
    let ended = format!(
        "{}|{}|{}",
        counters.succeeded, counters.failed, counters.cancelled
    );
    assert_eq!(fixture.rows(sql).await, [ended]);
}

fn files_below(folder: &std::path::Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| if path.is_dir() { files_below(&path) } else { 1 })
        .sum()
}

#[tokio::test]
async fn what_does_not_fit_the_memory_is_spilled_within_bounds_and_gone_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let spill = folder.path().join("spill");
    let left = spill.join("datafusion-left");
    std::fs::create_dir_all(&left).unwrap();
    std::fs::write(left.join("a"), b"of a process that was killed").unwrap();
    std::fs::write(spill.join("mine"), b"of somebody else").unwrap();
    let config = |spill_dir, spill_bytes| QueryConfig {
        memory_bytes: 16 << 20,
        spill_dir,
        spill_bytes,
        target_partitions: 2,
        ..QueryConfig::default()
    };
    let sorted = |rows| {
        format!(
            "SELECT max(n) FROM (SELECT row_number() OVER (ORDER BY value % 1000, value, repeat('x', 100)) n FROM generate_series(1, {rows}))"
        )
    };
    let fixture = Fixture::with_config(config(Some(spill.clone()), 1 << 30)).await;
    assert!(!left.exists() && spill.join("mine").exists());
    assert_eq!(fixture.rows(&sorted(300_000)).await, ["300000"]);
    let spilled = "SELECT spilled_bytes > 1000000 FROM sys.queries WHERE sql LIKE '%row_number%' AND sql NOT LIKE '%sys.queries%'";
    assert_eq!(fixture.rows(spilled).await, ["true"]);
    eventually("nothing is left", || {
        fixture.engine.counters().spill_bytes == 0 && files_below(&spill) == 1
    })
    .await;
    let bounded = Fixture::with_config(config(Some(folder.path().join("small")), 1 << 20)).await;
    let error = bounded.error(&sorted(3_000_000)).await;
    assert_eq!(error.status().code(), Code::ResourceExhausted, "{error}");
    let nowhere = Fixture::with_config(config(None, 1 << 30)).await;
    let error = nowhere.error(&sorted(3_000_000)).await;
    assert_eq!(error.status().code(), Code::ResourceExhausted, "{error}");
}

#[tokio::test]
async fn the_threads_of_queries_stand_behind_all_others() {
    let fixture = Fixture::new().await;
    let nice = || rustix::process::getpriority_process(None).unwrap();
    let own = nice();
    let worker = fixture.engine.spawn(async move { nice() }).unwrap();
    assert_eq!(worker.await.unwrap(), own.max(10));
    let blocking = fixture
        .engine
        .spawn(async move { tokio::task::spawn_blocking(nice).await.unwrap() });
    assert_eq!(blocking.unwrap().await.unwrap(), own.max(10));
}

/// What a query held was held to its natural end after its client had left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pub_26_what_a_query_held_is_free_soon_after_it_was_left_fifty_times() {
    let fixture = Fixture::with_config(narrow(2, 4)).await;
    let Other { mut client, .. } = serving_over(&fixture).await;
    let idle = || {
        let counters = fixture.engine.counters();
        counters.running + counters.queued + counters.memory_bytes == 0
    };
    for round in 0..50 {
        let info = client.execute(BUSY.to_owned(), None).await.unwrap();
        let ticket = info.endpoint[0].ticket.clone().unwrap();
        let mut other = client.clone();
        let query = tokio::spawn(async move {
            let mut rows = other.do_get(ticket).await?;
            rows.try_next().await
        });
        eventually("it runs", || fixture.engine.counters().running == 1).await;
        match round % 2 {
            0 => query.abort(),
            _ => {
                let cancelled = cancel(&mut client, &info).await.unwrap();
                assert_eq!(cancelled, CancelStatus::Cancelled);
                assert!(query.await.unwrap().is_err());
            }
        }
        let freed = tokio::time::timeout(Duration::from_secs(2), async {
            while !idle() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        freed.await.expect("free within two seconds");
    }
    assert_eq!(
        fixture
            .rows("SELECT count(*) FROM generate_series(1, 7)")
            .await,
        ["7"]
    );
}

type Client = arrow_flight::sql::client::FlightSqlServiceClient<tonic::transport::Channel>;

async fn act(
    client: &mut Client,
    name: &str,
    body: Vec<u8>,
) -> Result<bytes::Bytes, tonic::Status> {
    let action = Action {
        r#type: name.to_owned(),
        body: body.into(),
    };
    let mut results = client.inner_mut().do_action(action).await?.into_inner();
    Ok(results.try_next().await?.unwrap().body)
}

async fn cancel(client: &mut Client, info: &FlightInfo) -> Result<CancelStatus, tonic::Status> {
    let request = CancelFlightInfoRequest::new(info.clone());
    let body = act(client, "CancelFlightInfo", request.encode_to_vec()).await?;
    let result = CancelFlightInfoResult::decode(body).unwrap();
    Ok(CancelStatus::try_from(result.status).unwrap())
}

async fn announced(serving: &mut Serving, sql: &str) -> FlightInfo {
    serving.client.execute(sql.to_owned(), None).await.unwrap()
}

#[tokio::test]
async fn a_query_is_cancelled_before_it_comes_and_while_it_runs_and_not_after() {
    let mut serving = serving().await;
    let info = announced(&mut serving, "SELECT 1").await;
    let id = String::from_utf8(info.app_metadata.to_vec()).unwrap();
    assert!(id.starts_with(r#"{"query":""#), "{id}");
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    assert_eq!(
        cancel(&mut serving.client, &info).await.unwrap(),
        CancelStatus::Cancelled
    );
    let refused = match serving.client.do_get(ticket).await {
        Ok(rows) => rows.try_collect::<Vec<_>>().await.unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    assert!(refused.contains("cancelled"), "{refused}");

    let info = announced(&mut serving, ENDLESS).await;
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let mut rows = serving.client.do_get(ticket).await.unwrap();
    assert!(rows.try_next().await.unwrap().is_some());
    // The older action does the same.
    let request = ActionCancelQueryRequest {
        info: info.encode_to_vec().into(),
    };
    let body = act(
        &mut serving.client,
        "CancelQuery",
        request.as_any().encode_to_vec(),
    )
    .await;
    assert!(body.is_ok());
    let error = rows.try_collect::<Vec<_>>().await.unwrap_err();
    assert!(error.to_string().contains("cancelled"), "{error}");
    let late = cancel(&mut serving.client, &info).await.unwrap_err();
    assert_eq!(late.code(), Code::NotFound);

    // A ticket that is used twice is answered twice.
    let info = announced(&mut serving, "SELECT 5").await;
    for _ in 0..2 {
        let (_, batches) = serving.fetch(&info).await;
        assert_eq!(super::rows_of(&batches), ["5"]);
    }
}

#[tokio::test]
async fn the_first_message_says_which_query_and_which_snapshot() {
    let mut serving = serving().await;
    serving.fixture.create("t", 1, 1 << 20).await;
    serving
        .fixture
        .append("t", 0, &[Frame::record(1, b"", b"x")])
        .await;
    let command = CommandStatementQuery {
        query: "SELECT count(*) FROM t".to_owned(),
        transaction_id: None,
    };
    let info = announced(&mut serving, &command.query).await;
    let ticket = info.endpoint[0].ticket.clone().unwrap();
    let data = serving.client.inner_mut().do_get(ticket).await.unwrap();
    let messages: Vec<_> = data.into_inner().try_collect().await.unwrap();
    let said = String::from_utf8(messages[0].app_metadata.to_vec()).unwrap();
    let announced = String::from_utf8(info.app_metadata.to_vec()).unwrap();
    let same = announced.trim_end_matches('}');
    assert!(said.starts_with(same), "{said} for {announced}");
    let sql = "SELECT query_id, snapshot FROM sys.queries WHERE snapshot IS NOT NULL";
    let shown = serving.fixture.rows(sql).await;
    let (id, snapshot) = shown[0].split_once('|').unwrap();
    assert_eq!(
        said,
        format!(r#"{{"query":"{id}","snapshot":"{snapshot}"}}"#)
    );
    let again = format!("SELECT count(*) FROM t AS OF '{snapshot}'");
    assert_eq!(serving.fixture.rows(&again).await, ["1"]);
}

#[tokio::test]
async fn the_deadline_of_the_client_is_kept() {
    let mut serving = serving().await;
    let info = announced(&mut serving, BUSY).await;
    let mut request = tonic::Request::new(info.endpoint[0].ticket.clone().unwrap());
    request
        .metadata_mut()
        .insert("grpc-timeout", "300m".parse().unwrap());
    let status = match serving.client.inner_mut().do_get(request).await {
        Ok(data) => data.into_inner().try_collect::<Vec<_>>().await.unwrap_err(),
        Err(status) => status,
    };
    assert!(
        matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled),
        "{status}"
    );
    eventually("it ended", || {
        serving.fixture.engine.counters().running == 0
    })
    .await;
    let error = "SELECT error LIKE '%did not finish within 300ms%' OR state = 'cancelled' FROM sys.queries WHERE sql LIKE '%CROSS JOIN%' AND sql NOT LIKE '%sys.queries%'";
    assert_eq!(serving.fixture.rows(error).await, ["true"]);
}
