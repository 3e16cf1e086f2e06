//! Where users are known: nobody is served before proving to be one, on any protocol.

use basalt_auth::{ClientExchange, MECHANISMS, UserName, Users};
use basalt_proto::ErrorKind;
use basalt_proto::session::{AuthenticateResponse, EmptyResponse, Request};
use kafka_protocol::messages::{
    ApiKey, ApiVersionsRequest, ApiVersionsResponse, ListGroupsRequest, ListGroupsResponse,
    MetadataRequest, MetadataResponse, SaslAuthenticateRequest, SaslAuthenticateResponse,
    SaslHandshakeRequest, SaslHandshakeResponse,
};
use kafka_protocol::protocol::StrBytes;

use super::kafka::{Client, encoded};
use super::session::Session;
use super::*;

/// A server that knows alice.
async fn guarded(adjust: impl FnOnce(&mut ServerConfig)) -> Harness {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("users");
    let mut users = Users::default();
    users
        .set(UserName::new("alice").unwrap(), "wonderland")
        .unwrap();
    users.write(&path).unwrap();
    let authenticator = Authenticator::open(&path).unwrap();
    Harness::start_guarded(
        dir,
        Arc::new(RealDisk::new()),
        adjust,
        None,
        Some(authenticator),
    )
    .await
}

const PLAIN: &[u8] = b"\0alice\0wonderland";

impl Client {
    async fn handshake(&mut self, version: i16, mechanism: &'static str) -> (i16, usize) {
        let request =
            SaslHandshakeRequest::default().with_mechanism(StrBytes::from_static_str(mechanism));
        let answer: SaslHandshakeResponse =
            self.call(ApiKey::SaslHandshake, version, &request).await;
        (answer.error_code, answer.mechanisms.len())
    }

    async fn authenticate(&mut self, version: i16, message: &[u8]) -> SaslAuthenticateResponse {
        let request = SaslAuthenticateRequest::default().with_auth_bytes(message.to_vec().into());
        self.call(ApiKey::SaslAuthenticate, version, &request).await
    }

    async fn is_served(&mut self) {
        let request = MetadataRequest::default().with_topics(Some(Vec::new()));
        let answer: MetadataResponse = self.call(ApiKey::Metadata, 12, &request).await;
        assert_eq!(answer.brokers.len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kafka_clients_come_in_by_password_and_by_proof_in_each_version() {
    let harness = guarded(|_| {}).await;
    for version in 0..=2 {
        let mut client = Client::connect(&harness).await;
        assert_eq!(client.handshake(1, "PLAIN").await, (0, 3));
        let answer = client.authenticate(version, PLAIN).await;
        assert_eq!((answer.error_code, answer.session_lifetime_ms), (0, 0));
        assert_eq!(answer.error_message, None);
        client.is_served().await;
        // No second time.
        assert_eq!(client.handshake(1, "PLAIN").await, (34, 0));
        assert_eq!(client.authenticate(version, PLAIN).await.error_code, 34);
        client.is_served().await;
    }
    // All in one packet: what is behind the exchange is served after it.
    let mut client = Client::connect(&harness).await;
    let mechanism = StrBytes::from_static_str("PLAIN");
    let handshake = SaslHandshakeRequest::default().with_mechanism(mechanism);
    let password = SaslAuthenticateRequest::default().with_auth_bytes(PLAIN.to_vec().into());
    let packet = [
        encoded(ApiKey::SaslHandshake, 1, 1, &handshake),
        encoded(ApiKey::SaslAuthenticate, 1, 2, &password),
        encoded(ApiKey::ListGroups, 0, 3, &ListGroupsRequest::default()),
    ];
    client.peer.send(&packet.concat()).await;
    let _: SaslHandshakeResponse = client.receive(ApiKey::SaslHandshake, 1, 1).await;
    let _: SaslAuthenticateResponse = client.receive(ApiKey::SaslAuthenticate, 1, 2).await;
    let _: ListGroupsResponse = client.receive(ApiKey::ListGroups, 0, 3).await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.handshake(1, "SCRAM-SHA-256").await, (0, 3));
    let (mut exchange, first) = ClientExchange::start("alice", "wonderland");
    let challenge = client.authenticate(2, &first).await;
    let proof = exchange.step(&challenge.auth_bytes).unwrap().unwrap();
    let proved = client.authenticate(2, &proof).await;
    assert_eq!(proved.error_code, 0);
    assert_eq!(exchange.step(&proved.auth_bytes).unwrap(), None);
    client.is_served().await;
    harness.stop().await;
}

/// Messages without requests around them, as before Kafka 1.0.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_handshake_of_version_0_messages_come_bare() {
    let harness = guarded(|_| {}).await;
    let bare = async |client: &mut Client, message: &[u8]| {
        let length = u32::try_from(message.len()).unwrap();
        let sent = [&length.to_be_bytes(), message].concat();
        client.peer.send(&sent).await;
        client.answer().await
    };
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.handshake(0, "PLAIN").await, (0, 3));
    assert_eq!(bare(&mut client, PLAIN).await, b"");
    client.is_served().await;

    let mut client = Client::connect(&harness).await;
    assert_eq!(client.handshake(0, "SCRAM-SHA-256").await, (0, 3));
    let (mut exchange, first) = ClientExchange::start("alice", "wonderland");
    let challenge = bare(&mut client, &first).await;
    let proof = exchange.step(&challenge).unwrap().unwrap();
    let proved = bare(&mut client, &proof).await;
    assert_eq!(exchange.step(&proved).unwrap(), None);
    client.is_served().await;

    let mut client = Client::connect(&harness).await;
    client.handshake(0, "PLAIN").await;
    client.peer.send(b"\0\0\0\x09\0alice\0ab").await;
    assert_eq!(client.peer.rest().await, b"", "refused without a word");
    let mut client = Client::connect(&harness).await;
    client.handshake(0, "PLAIN").await;
    client.peer.send(b"\x7f\xff\xff\xff").await;
    assert_eq!(client.peer.rest().await, b"", "too long to be waited for");
    harness.stop().await;
}

/// Before SASL succeeds only ApiVersions, SaslHandshake and SaslAuthenticate are allowed (kroxylicious/kroxylicious#2951).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_else_is_served_before() {
    let harness = guarded(|_| {}).await;
    let versions = ApiVersionsRequest::default()
        .with_client_software_name(StrBytes::from_static_str("c"))
        .with_client_software_version(StrBytes::from_static_str("1"));
    let mut steps = 0;
    loop {
        let mut client = Client::connect(&harness).await;
        let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 3, &versions).await;
        let announced = |key: ApiKey| told.api_keys.iter().any(|api| api.api_key == key as i16);
        assert!(announced(ApiKey::SaslHandshake) && announced(ApiKey::SaslAuthenticate));
        if steps > 0 {
            client.handshake(1, "SCRAM-SHA-512").await;
            let told: ApiVersionsResponse = client.call(ApiKey::ApiVersions, 4, &versions).await;
            assert_eq!(told.error_code, 0);
        }
        if steps > 1 {
            let first = b"n,,n=alice,r=abc";
            assert_eq!(client.authenticate(1, first).await.error_code, 0);
        }
        client
            .send(ApiKey::ListGroups, 0, &ListGroupsRequest::default())
            .await;
        assert_eq!(client.peer.rest().await, b"", "after {steps} steps");
        steps += 1;
        if steps == 3 {
            break;
        }
    }
    harness
        .until("three refusals", |count| {
            count.refused == [(ErrorKind::Unauthenticated, 3)]
        })
        .await;
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_so_and_ends_the_connection() {
    let harness = guarded(|_| {}).await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.handshake(1, "GSSAPI").await, (33, MECHANISMS.len()));
    assert_eq!(client.peer.rest().await, b"");
    for wrong in [
        &b"\0alice\0wrong"[..],
        b"\0bob\0wonderland",
        b"bob\0alice\0wonderland",
        b"?",
    ] {
        let mut client = Client::connect(&harness).await;
        client.handshake(1, "PLAIN").await;
        let answer = client.authenticate(2, wrong).await;
        assert_eq!(answer.error_code, 58);
        let message = answer.error_message.unwrap();
        assert_eq!(&*message, "no such user and password");
        assert_eq!(client.peer.rest().await, b"");
    }
    // Out of order.
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.authenticate(2, PLAIN).await.error_code, 34);
    assert_eq!(client.peer.rest().await, b"");
    let mut client = Client::connect(&harness).await;
    client.handshake(1, "PLAIN").await;
    assert_eq!(client.handshake(1, "PLAIN").await.0, 34);
    assert_eq!(client.peer.rest().await, b"");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_are_told_to_strangers_but_not_for_ever() {
    let harness = guarded(|_| {}).await;
    let mut client = Client::connect(&harness).await;
    let mut unknown = encoded(ApiKey::ApiVersions, 0, 1, &ApiVersionsRequest::default());
    unknown[6..8].copy_from_slice(&99_i16.to_be_bytes());
    for _ in 0..16 {
        client.peer.send(&unknown).await;
        let told: ApiVersionsResponse = client.receive(ApiKey::ApiVersions, 0, 1).await;
        assert_eq!(told.error_code, 35);
    }
    client.peer.send(&unknown).await;
    assert_eq!(client.peer.rest().await, b"");
    harness.stop().await;
}

/// A stranger costs little: no long requests, and no long stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_has_little_room_and_little_time() {
    let harness = guarded(|config| config.handshake_timeout = Duration::from_millis(300)).await;
    let mut kafka = Client::connect(&harness).await;
    kafka.peer.send(&[0, 1, 0, 1]).await;
    assert_eq!(kafka.peer.rest().await, b"", "65,537 bytes");
    let mut session = Session::open(&harness).await;
    session.peer.send(&[0, 1, 0, 1, 16, 0, 0, 0, 7]).await;
    let refused = session.receive().await.refused();
    assert_eq!(refused.kind, ErrorKind::TooLarge);
    assert_eq!(session.peer.rest().await, b"");

    let mut kafka = Client::connect(&harness).await;
    kafka.handshake(1, "PLAIN").await;
    let mut session = Session::open(&harness).await;
    assert_eq!(kafka.peer.rest().await, b"");
    assert_eq!(session.peer.rest().await, b"");
    assert_eq!(harness.count().handshake_timeouts, 2);
    harness.stop().await;
}

impl Session {
    async fn prove(&mut self, mechanism: &str, message: &[u8]) -> super::session::Response {
        let request = Request::Authenticate { mechanism, message };
        self.send(&request).await;
        self.receive().await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_begin_with_the_exchange() {
    let harness = guarded(|_| {}).await;
    let mut session = Session::open(&harness).await;
    let proved: AuthenticateResponse = session.prove("PLAIN", PLAIN).await.ok();
    assert!(proved.done && proved.message.is_empty());
    session.send(&Request::Ping).await;
    let _: EmptyResponse = session.receive().await.ok();
    let again = session.prove("PLAIN", PLAIN).await.refused();
    assert_eq!(again.kind, ErrorKind::InvalidRequest);

    let mut session = Session::open(&harness).await;
    let (mut exchange, first) = ClientExchange::start("alice", "wonderland");
    let mechanism = ClientExchange::MECHANISM;
    let asked: AuthenticateResponse = session.prove(mechanism, &first).await.ok();
    assert!(!asked.done);
    let proof = exchange.step(&asked.message).unwrap().unwrap();
    let proved: AuthenticateResponse = session.prove(mechanism, &proof).await.ok();
    assert!(proved.done);
    assert_eq!(exchange.step(&proved.message).unwrap(), None);
    session.send(&Request::Ping).await;
    let _: EmptyResponse = session.receive().await.ok();

    let refused = async |session: &mut Session| {
        let response = session.receive().await.refused();
        assert_eq!(session.peer.rest().await, b"");
        response.kind
    };
    let mut session = Session::open(&harness).await;
    session.send(&Request::Ping).await;
    assert_eq!(refused(&mut session).await, ErrorKind::Unauthenticated);
    for (mechanism, message) in [
        ("PLAIN", &b"\0alice\0wrong"[..]),
        ("ANONYMOUS", b""),
        ("SCRAM-SHA-512", b"n,,n=alice"),
    ] {
        let mut session = Session::open(&harness).await;
        let request = Request::Authenticate { mechanism, message };
        session.send(&request).await;
        let kind = refused(&mut session).await;
        assert_eq!(kind, ErrorKind::Unauthenticated, "{mechanism}");
    }
    // A mechanism that changes in the midst.
    let mut session = Session::open(&harness).await;
    let _: AuthenticateResponse = session.prove("SCRAM-SHA-512", &first).await.ok();
    let message = PLAIN;
    let mechanism = "PLAIN";
    let request = Request::Authenticate { mechanism, message };
    session.send(&request).await;
    assert_eq!(refused(&mut session).await, ErrorKind::Unauthenticated);
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openings_that_cannot_say_who_calls_are_refused() {
    let harness = guarded(|_| {}).await;
    let mut producer = harness.producer("t").await;
    let ack = producer.rest().await;
    assert_eq!(ack[..2], [0xff, ErrorKind::Unauthenticated.code()]);
    assert_eq!(ack.len(), 9);
    assert_eq!(harness.consumer("g", "t").await.rest().await, b"");
    let mut committer = harness.connect().await;
    committer.send(&commit_opening("g", "t", 0, 1)).await;
    assert_eq!(committer.rest().await, b"");
    assert!(harness.log.log().topics().is_empty(), "no topic was made");
    harness.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_nobody_is_asked_an_exchange_is_refused_and_the_rest_goes_on() {
    let harness = Harness::start().await;
    let mut client = Client::connect(&harness).await;
    assert_eq!(client.handshake(1, "PLAIN").await, (34, 0));
    assert_eq!(client.authenticate(2, PLAIN).await.error_code, 34);
    let groups: ListGroupsResponse = client
        .call(ApiKey::ListGroups, 4, &ListGroupsRequest::default())
        .await;
    assert_eq!(groups.error_code, 0);
    let mut session = Session::open(&harness).await;
    let refused = session.prove("PLAIN", PLAIN).await.refused();
    assert_eq!(refused.kind, ErrorKind::InvalidRequest);
    session.send(&Request::Ping).await;
    let _: EmptyResponse = session.receive().await.ok();
    harness.stop().await;
}
