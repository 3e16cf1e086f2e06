//! The whole of it: a file, clients that prove who they are, and those that cannot.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use crate::{ClientExchange, MECHANISMS, Step};

struct Fixture {
    folder: TempDir,
    authenticator: Authenticator,
}

impl Fixture {
    fn path(&self) -> PathBuf {
        self.folder.path().join("users")
    }

    fn change(&self, change: impl FnOnce(&mut Users)) {
        let mut users = Users::read(&self.path()).unwrap();
        change(&mut users);
        users.write(&self.path()).unwrap();
    }

    fn set(&self, name: &str, password: &str) {
        self.change(|users| {
            users.set(UserName::new(name).unwrap(), password).unwrap();
        });
    }

    async fn plain(&self, message: &[u8]) -> Step {
        let mut exchange = self.authenticator.exchange("PLAIN").await.unwrap();
        exchange.step(message).await
    }

    async fn is_let_in(&self, name: &str, password: &str) -> bool {
        let plain = self.plain(format!("\0{name}\0{password}").as_bytes()).await;
        let done = Step::Done {
            user: UserName::new(name).unwrap(),
            message: Vec::new(),
        };
        let basic = STANDARD.encode(format!("{name}:{password}"));
        let identity = self.authenticator.identify(&format!("Basic {basic}")).await;
        let scram = self.scram(name, password).await;
        assert_eq!(plain == done, identity.is_some(), "both ways say the same");
        assert_eq!(plain == done, scram, "SCRAM too");
        plain == done
    }

    async fn scram(&self, name: &str, password: &str) -> bool {
        let mut exchange = self
            .authenticator
            .exchange(ClientExchange::MECHANISM)
            .await
            .unwrap();
        let (mut client, first) = ClientExchange::start(name, password);
        let Step::Continue(challenge) = exchange.step(&first).await else {
            panic!("no challenge");
        };
        let proof = client.step(&challenge).unwrap().unwrap();
        match exchange.step(&proof).await {
            Step::Done { user, message } => {
                assert_eq!(user.as_str(), name);
                assert_eq!(client.step(&message).unwrap(), None);
                // What is over stays over.
                assert_eq!(exchange.step(&proof).await, Step::Refused);
                true
            }
            Step::Refused => false,
            Step::Continue(_) => panic!("a third step"),
        }
    }
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("users");
    let mut users = Users::default();
    users
        .set(UserName::new("alice").unwrap(), "wonderland")
        .unwrap();
    users.write(&path).unwrap();
    Fixture {
        authenticator: Authenticator::open(&path).unwrap(),
        folder,
    }
}

#[tokio::test]
async fn only_the_right_password_of_a_user_is_let_in() {
    let fixture = fixture();
    assert!(fixture.is_let_in("alice", "wonderland").await);
    for (name, password) in [
        ("alice", "Wonderland"),
        ("bob", "wonderland"),
        ("alice", "x"),
    ] {
        assert!(
            !fixture.is_let_in(name, password).await,
            "{name} {password}"
        );
    }
    for mechanism in [
        "",
        "plain",
        "SCRAM-SHA-1",
        "SCRAM-SHA-256-PLUS",
        "ANONYMOUS",
    ] {
        assert!(fixture.authenticator.exchange(mechanism).await.is_none());
    }
}

#[tokio::test]
async fn nobody_acts_for_another() {
    let fixture = fixture();
    let done = Step::Done {
        user: UserName::new("alice").unwrap(),
        message: Vec::new(),
    };
    assert_eq!(fixture.plain(b"alice\0alice\0wonderland").await, done);
    assert_eq!(
        fixture.plain(b"bob\0alice\0wonderland").await,
        Step::Refused
    );
    for malformed in [
        &b""[..],
        b"alice",
        b"\0alice",
        b"\0alice\0",
        b"\0\0wonderland",
        b"\0a\0b\0c",
    ] {
        assert_eq!(
            fixture.plain(malformed).await,
            Step::Refused,
            "{malformed:?}"
        );
    }
    let long = [b"\0alice\0".to_vec(), vec![b'x'; 9000]].concat();
    assert_eq!(fixture.plain(&long).await, Step::Refused);
}

/// AUTH-2.
#[tokio::test]
async fn a_stranger_is_asked_as_a_user_is() {
    let fixture = fixture();
    let challenge = async |name: &str| {
        let mut exchange = fixture
            .authenticator
            .exchange("SCRAM-SHA-512")
            .await
            .unwrap();
        let first = format!("n,,n={name},r=clientnonce");
        let Step::Continue(challenge) = exchange.step(first.as_bytes()).await else {
            panic!("no challenge");
        };
        let challenge = String::from_utf8(challenge).unwrap();
        let salt = challenge.split(',').nth(1).unwrap().to_owned();
        let rest = (
            challenge.len(),
            challenge.split(',').nth(2).unwrap().to_owned(),
        );
        let nonce = challenge.split(',').next().unwrap();
        let last = format!("c=biws,{nonce},p={}", STANDARD.encode([7; 64]));
        assert_eq!(exchange.step(last.as_bytes()).await, Step::Refused);
        (salt, rest)
    };
    let (alice, bob) = (challenge("alice").await, challenge("bob").await);
    assert_eq!(alice.1, bob.1, "length and iterations");
    assert_ne!(alice.0, bob.0);
    assert_eq!(bob.0, challenge("bob").await.0, "the same salt each time");
}

#[tokio::test]
async fn a_token_stands_for_the_password_until_that_changes() {
    let fixture = fixture();
    let identify = async |header: &str| fixture.authenticator.identify(header).await;
    let basic = format!("Basic {}", STANDARD.encode("alice:wonderland"));
    let token = identify(&basic).await.unwrap().token;
    let unpadded = STANDARD_NO_PAD.encode("alice:wonderland");
    assert_ne!(basic, format!("Basic {unpadded}"));
    assert!(identify(&format!("basic {unpadded}")).await.is_some());
    let bearer = format!("bearer {token}");
    assert_eq!(identify(&bearer).await.unwrap().token, token);
    for header in [
        "",
        "Bearer",
        "Bearer anonymous",
        "Digest x",
        "Basic !!",
        "Basic YWxpY2U=",
    ] {
        assert_eq!(identify(header).await, None, "{header}");
    }
    let restarted = Authenticator::open(&fixture.path()).unwrap();
    assert_eq!(restarted.identify(&bearer).await, None);
    fixture.set("bob", "builder");
    assert!(identify(&bearer).await.is_some(), "others do not matter");
    fixture.set("alice", "looking glass");
    assert_eq!(identify(&bearer).await, None);
    assert_eq!(identify(&basic).await, None);
}

/// AUTH-4.
#[tokio::test]
async fn a_file_that_changed_counts_at_once_and_a_broken_one_not_at_all() {
    let fixture = fixture();
    fixture.set("bob", "builder");
    assert!(fixture.is_let_in("bob", "builder").await);
    fixture.change(|users| {
        users.remove(&UserName::new("alice").unwrap());
    });
    assert!(!fixture.is_let_in("alice", "wonderland").await);
    let good = fs::read(fixture.path()).unwrap();
    fs::write(fixture.path(), b"alice is here\n").unwrap();
    assert!(fixture.is_let_in("bob", "builder").await);
    fs::remove_file(fixture.path()).unwrap();
    assert!(fixture.is_let_in("bob", "builder").await);
    assert!(Authenticator::open(&fixture.path()).is_err());
    fs::create_dir(fixture.path()).unwrap();
    assert!(fixture.is_let_in("bob", "builder").await, "a folder");
    fs::remove_dir(fixture.path()).unwrap();
    fs::write(fixture.path(), good).unwrap();
    assert!(fixture.is_let_in("bob", "builder").await);
    // What cannot be read now may be read later, without another change. (Root reads everything.)
    fixture.set("eve", "apple");
    let looked = Stamp::of(&fixture.path()).ok();
    assert!(fixture.is_let_in("eve", "apple").await);
    assert_eq!(fixture.authenticator.shared.seen.lock().judged, looked);
    fs::set_permissions(fixture.path(), fs::Permissions::from_mode(0o640)).unwrap();
    assert_ne!(
        Stamp::of(&fixture.path()).ok(),
        looked,
        "it is looked at again"
    );
    fs::write(fixture.path(), b"").unwrap();
    assert!(!fixture.is_let_in("bob", "builder").await, "nobody is left");
}

/// What comes of a message that is made of the server's own last one, so that each step is reached.
fn made_of(challenge: &[u8], parts: &(usize, String, Vec<u8>)) -> Vec<u8> {
    let (kind, text, bytes) = parts;
    let challenge = String::from_utf8_lossy(challenge);
    let nonce = challenge.split(',').next().unwrap_or_default();
    match kind {
        0 => bytes.clone(),
        1 => format!("n,,n=alice,r={text}").into_bytes(),
        2 => format!("c=biws,{nonce},p={}", STANDARD.encode(bytes)).into_bytes(),
        3 => format!("c=biws,{nonce},p={text}").into_bytes(),
        4 => format!("{text},{nonce},p={text}").into_bytes(),
        5 => format!("\0alice\0{text}").into_bytes(),
        _ => text.clone().into_bytes(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever somebody says who does not know the password: it is refused or asked on, and nothing panics.
    #[test]
    fn nobody_comes_in_by_chance(
        mechanism in 0..MECHANISMS.len(),
        messages in proptest::collection::vec(
            (0_usize..7, "[nyp],[a=bc,]{0,6}n=[a-z=,]{0,6},r=[ -~]{0,9}|[ -~]{0,90}", proptest::collection::vec(any::<u8>(), 0..70)),
            1..5,
        ),
    ) {
        let fixture = FIXTURE.get_or_init(fixture);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut exchange = fixture.authenticator.exchange(MECHANISMS[mechanism]).await.unwrap();
            let mut challenge = Vec::new();
            for parts in &messages {
                match exchange.step(&made_of(&challenge, parts)).await {
                    Step::Continue(message) => challenge = message,
                    Step::Done { .. } => panic!("let in"),
                    Step::Refused => {}
                }
            }
        });
    }
}

static FIXTURE: std::sync::OnceLock<Fixture> = std::sync::OnceLock::new();

/// A password that was right when it was looked at does not give a token of the one that came after it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_that_changes_meanwhile_leaves_no_token() {
    let fixture = fixture();
    let basic = format!("Basic {}", STANDARD.encode("alice:wonderland"));
    // The turn is held, so that the password is looked at after it was changed.
    let turn = Arc::clone(&fixture.authenticator.shared.turns)
        .acquire_owned()
        .await
        .unwrap();
    let authenticator = fixture.authenticator.clone();
    let waiting = tokio::spawn(async move { authenticator.identify(&basic).await });
    while Arc::strong_count(&fixture.authenticator.shared.turns) < 3 {
        tokio::task::yield_now().await;
    }
    fixture.set("alice", "looking glass");
    fixture.authenticator.refresh().await;
    drop(turn);
    if let Some(identity) = waiting.await.unwrap() {
        let bearer = format!("Bearer {}", identity.token);
        assert_eq!(fixture.authenticator.identify(&bearer).await, None);
    }
    // So does an exchange that was begun before.
    let mut exchange = fixture
        .authenticator
        .exchange("SCRAM-SHA-256")
        .await
        .unwrap();
    let (mut client, first) = ClientExchange::start("alice", "looking glass");
    let Step::Continue(challenge) = exchange.step(&first).await else {
        panic!("no challenge");
    };
    let proof = client.step(&challenge).unwrap().unwrap();
    fixture.change(|users| {
        users.remove(&UserName::new("alice").unwrap());
    });
    fixture.authenticator.refresh().await;
    assert_eq!(exchange.step(&proof).await, Step::Refused);
}

/// What was right once is not worked through again, and what was wrong is.
#[tokio::test]
async fn a_login_that_is_known_waits_for_nobody() {
    let fixture = fixture();
    assert!(fixture.is_let_in("alice", "wonderland").await);
    let _turn = fixture.authenticator.shared.turns.acquire().await.unwrap();
    let known = format!("Basic {}", STANDARD.encode("alice:wonderland"));
    assert!(fixture.authenticator.identify(&known).await.is_some());
    let guess = format!("Basic {}", STANDARD.encode("alice:wonderlane"));
    let guessing = fixture.authenticator.identify(&guess);
    let waits = tokio::time::timeout(std::time::Duration::from_millis(50), guessing).await;
    assert!(waits.is_err(), "it waits for its turn");
}
