//! Credentials and certificates that are replaced while the sink runs.

use super::*;
use crate::clock::Clock as _;
use crate::error_chain::Chain;
use crate::net::certificates::{Authority, replace};
use crate::net::config::{IdentityFiles, TlsConfig};

/// A JWT as NATS wants it: signed by `issuer`, about `subject`, perhaps with an end (seconds since 1970).
fn jwt(
    issuer: &nkeys::KeyPair,
    subject: &nkeys::KeyPair,
    expires_at: Option<i64>,
    nats: &serde_json::Value,
) -> String {
    use base64::Engine as _;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;

    let part = |value: serde_json::Value| BASE64.encode(value.to_string());
    let mut claims = serde_json::json!({
        "jti": subject.public_key(), "iat": 1_700_000_000, "name": "test",
        "iss": issuer.public_key(), "sub": subject.public_key(), "nats": nats,
    });
    if let Some(at) = expires_at {
        claims["exp"] = at.into();
    }
    let head = part(serde_json::json!({"typ": "JWT", "alg": "ed25519-nkey"}));
    let signed = format!("{head}.{}", part(claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", BASE64.encode(signature))
}

/// What a `.creds` file of a user of the account holds.
fn credentials(account: &nkeys::KeyPair, expires_at: Option<i64>) -> String {
    let user = nkeys::KeyPair::new_user();
    let nats = serde_json::json!({
        "type": "user", "version": 2, "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1,
    });
    let jwt = jwt(account, &user, expires_at, &nats);
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

/// A server of an operator, with JetStream for one account.
async fn operated() -> (Server, nkeys::KeyPair) {
    let (operator, account) = (nkeys::KeyPair::new_operator(), nkeys::KeyPair::new_account());
    let system = nkeys::KeyPair::new_account();
    let of_operator = serde_json::json!({"type": "operator", "version": 2});
    let of_operator = jwt(&operator, &operator, None, &of_operator);
    let limits = |jetstream: i64| {
        serde_json::json!({
            "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1, "mem_storage": jetstream, "disk_storage": jetstream,
            "streams": jetstream, "consumer": jetstream,
        })
    };
    let of = |account: &nkeys::KeyPair, jetstream| {
        let claims =
            serde_json::json!({"type": "account", "version": 2, "limits": limits(jetstream)});
        format!("{}: \"{}\"", account.public_key(), jwt(&operator, account, None, &claims))
    };
    let config = format!(
        "operator: \"{of_operator}\"\nresolver: MEMORY\nsystem_account: {}\nresolver_preload: {{\n{}\n{}\n}}\n",
        system.public_key(),
        of(&system, 0),
        of(&account, -1),
    );
    (Server::start(&config).await, account)
}

/// The connection of a sink that has one, and the stream's side of it.
async fn connected(builder: &NatsSinkBuilder) -> (NatsLink, Context) {
    builder.shared.connected(Duration::from_secs(20)).await.unwrap().clone()
}

/// Waits for a state of the connection.
async fn wait_for(link: &NatsLink, is_so: impl FnMut(&LinkState) -> bool) -> LinkState {
    let mut watch = link.watch();
    let found = tokio::time::timeout(Duration::from_secs(60), watch.wait_for(is_so)).await;
    let state = found.map(|found| found.unwrap().clone());
    state.unwrap_or_else(|_| panic!("{:?}", link.watch().borrow()))
}

/// Batch `number` of `count` records in all, each with a number of its own.
fn batch_number(builder: &NatsSinkBuilder, number: u64, count: u64) -> SealedBatch {
    let payloads: Vec<_> = records(number, count);
    let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    let mut facts = facts(number, count);
    facts.first_seq.0 = number * count;
    facts.last_seq.0 = (number + 1) * count - 1;
    batch(builder, facts, &payloads)
}

fn records(number: u64, count: u64) -> Vec<Vec<u8>> {
    (number * count..(number + 1) * count).map(|n| format!("record {n}").into_bytes()).collect()
}

/// Delivers as a lane does: again after each failure, which is an outage and nothing else.
async fn deliver(sink: &mut dyn Sink, batch: &SealedBatch) -> Delivered {
    for attempt in 1..600 {
        match sink.deliver(batch, attempt).await {
            Ok(delivered) => return delivered,
            Err(error) => assert_eq!(error.class, Class::Unreachable, "{}", Chain(&error)),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it is never delivered");
}

#[tokio::test]
async fn credentials_that_are_replaced_are_taken_up_without_a_restart() {
    let (server, account) = operated().await;
    let file = server.folder.path().join("cloud.creds");
    let secret = crate::secret::Secret::File(file.clone());
    let builder = server.builder(|config, _| config.credentials = Some(secret.clone()));
    let error = builder.build().probe().await.unwrap_err();
    let path = file.display();
    let expected =
        format!("not connected to NATS: the credentials in {path} cannot be read: No such");
    assert!(error.reason.starts_with(&expected), "{error}");
    std::fs::write(&file, credentials(&nkeys::KeyPair::new_account(), None)).unwrap();
    let link = NatsLink::start(&[server.url()], Some(secret), None, "test").await.unwrap();
    let mut state = link.watch();
    let refused = state.wait_for(|state| state.last_error.is_some()).await.unwrap().clone();
    assert!(!refused.connected);
    assert!(refused.last_error.unwrap().contains("authorization"));
    std::fs::write(&file, credentials(&account, None)).unwrap();
    assert!(link.wait_connected(Duration::from_secs(20)).await.connected);
}

/// The server ends a session when its credentials expire. The new ones lie there before that, or come too late: either way
/// the sink is back by itself, and no record is lost or stored twice.
#[tokio::test]
async fn d_15_a_session_that_ends_with_its_credentials_goes_on_with_new_ones() {
    for is_early in [true, false] {
        let (server, account) = operated().await;
        let file = server.folder.path().join("cloud.creds");
        let now = crate::clock::SystemClock.now().0 / 1_000_000_000;
        replace(&file, &credentials(&account, Some(now + 3)));
        let secret = crate::secret::Secret::File(file.clone());
        let builder = server.builder(|config, _| config.credentials = Some(secret));
        let (link, context) = connected(&builder).await;
        context.create_stream(edge()).await.unwrap();
        let mut sink = builder.build();
        assert_eq!(deliver(&mut *sink, &batch_number(&builder, 0, 20)).await.records, 20);
        assert_eq!(link.watch().borrow().sessions, 1);
        if is_early {
            replace(&file, &credentials(&account, None));
        } else {
            let why = "authorization violation: the server refuses the credentials; renew the file";
            // A server that closes while the client still speaks is seen as one that is not there, until the next try.
            let is_why = |error: &String| error.starts_with(why);
            let refused = |state: &LinkState| {
                !state.connected && state.last_error.as_ref().is_some_and(is_why)
            };
            let before = wait_for(&link, refused).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let after = link.watch().borrow().clone();
            println!("{} tries in 2 s", after.failures - before.failures);
            assert!(!after.connected && after.failures - before.failures <= 20, "{after:?}");
            wait_for(&link, refused).await;
            let error = sink.deliver(&batch_number(&builder, 1, 20), 1).await.unwrap_err();
            assert_eq!(error.class, Class::Unreachable, "{error}");
            assert!(error.reason.starts_with("not connected to NATS: "), "{error}");
            replace(&file, &credentials(&account, None));
        }
        // In the second in which they expire, the server may let old ones in and send them away again.
        wait_for(&link, |state| state.connected && state.sessions > 1).await;
        assert_eq!(deliver(&mut *sink, &batch_number(&builder, 1, 20)).await.records, 20);
        assert_eq!(stored(&context).await, [records(0, 20), records(1, 20)].concat());
    }
}

/// The certificate that the server wants comes late, in two steps, to files that are there already: the sink connects by
/// itself when the pair is whole, and says until then what is wrong.
#[tokio::test]
async fn d_15_a_client_certificate_that_is_replaced_is_taken_up() {
    let (authority, foreign) = (Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (own, wrong, right) = (authority.pair(), foreign.pair(), authority.pair());
    for (name, content) in [
        ("ca", &authority.pem),
        ("server.crt", &own.certificate),
        ("server.key", &own.key),
        ("client.crt", &wrong.certificate),
        ("client.key", &wrong.key),
    ] {
        replace(&path(name), content);
    }
    let file = |name: &str| path(name).display().to_string();
    let server = Server::start(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        file("server.crt"),
        file("server.key"),
        file("ca"),
    ))
    .await;
    let files = IdentityFiles { certificate: path("client.crt"), key: path("client.key") };
    let tls = TlsConfig { ca: Some(path("ca")), identity: Some(files) };
    let builder = server.builder(|config, _| {
        config.tls = Some(tls.clone());
        config.stream = None;
    });
    let mut sink = builder.build();
    let error = sink.probe().await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{error}");
    // Half of the new pair changes nothing: what goes on being refused is the old one.
    replace(&path("client.crt"), &right.certificate);
    let error = sink.probe().await.unwrap_err();
    assert_eq!(error.class, Class::Unreachable, "{}", Chain(&error));
    replace(&path("client.key"), &right.key);
    for _ in 0..30 {
        match sink.probe().await {
            Ok(()) => return,
            Err(error) => assert_eq!(error.class, Class::Unreachable, "{}", Chain(&error)),
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    panic!("the new pair is not taken up");
}

/// Certificate and key are replaced one after the other. The session that lives goes on meanwhile, and one that has to be made
/// in between is made with the pair from before; the next one is made with the new pair.
#[tokio::test]
async fn d_15_a_session_outlives_the_replacement_of_its_pair_and_half_a_pair_is_never_shown() {
    let (authority, before, after) = (Authority::new(), Authority::new(), Authority::new());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (own, old, new) = (authority.pair(), before.pair(), after.pair());
    for (name, content) in [
        ("ca", &authority.pem),
        ("clients", &before.pem),
        ("server.crt", &own.certificate),
        ("server.key", &own.key),
        ("client.crt", &old.certificate),
        ("client.key", &old.key),
    ] {
        replace(&path(name), content);
    }
    let file = |name: &str| path(name).display().to_string();
    let mut server = Server::start(&format!(
        "tls {{ cert_file: \"{}\", key_file: \"{}\", ca_file: \"{}\", verify: true }}",
        file("server.crt"),
        file("server.key"),
        file("clients"),
    ))
    .await;
    let files = IdentityFiles { certificate: path("client.crt"), key: path("client.key") };
    let tls = TlsConfig { ca: Some(path("ca")), identity: Some(files) };
    let builder = server.builder(|config, _| config.tls = Some(tls));
    let (link, context) = connected(&builder).await;
    context.create_stream(edge()).await.unwrap();
    let mut sink = builder.build();
    let sessions = || link.watch().borrow().sessions;
    assert_eq!(deliver(&mut *sink, &batch_number(&builder, 0, 20)).await.records, 20);
    replace(&path("client.crt"), &new.certificate);
    for number in 1..4 {
        let delivered = sink.deliver(&batch_number(&builder, number, 20), 1).await.unwrap();
        assert_eq!((delivered.records, sessions()), (20, 1));
    }
    server.kill();
    server.restart();
    wait_for(&link, |state| state.connected && state.sessions == 2).await;
    assert_eq!(deliver(&mut *sink, &batch_number(&builder, 4, 20)).await.records, 20);
    replace(&path("client.key"), &new.key);
    assert_eq!(deliver(&mut *sink, &batch_number(&builder, 5, 20)).await.records, 20);
    assert_eq!(sessions(), 2);
    // From now on the old pair is worth nothing.
    replace(&path("clients"), &after.pem);
    server.kill();
    server.restart();
    wait_for(&link, |state| state.connected && state.sessions == 3).await;
    assert_eq!(deliver(&mut *sink, &batch_number(&builder, 6, 20)).await.records, 20);
    let all: Vec<_> = (0..7).flat_map(|number| records(number, 20)).collect();
    assert_eq!(stored(&context).await, all);
}
