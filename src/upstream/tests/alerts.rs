//! Alerts of TLS that a server ends a connection with which has worked before.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::fake::{Say, Seen, legacy};
use super::*;
use crate::io::tls::provider;

/// A legacy server that tells an alert instead of the answer to the second call: its URL, and who vouches for it.
async fn start() -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let builder = ServerConfig::builder_with_provider(provider());
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = builder.with_single_cert(vec![certificate.der().clone()], private).unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/mcp", listener.local_addr().unwrap());
    let calls = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, calls) = (acceptor.clone(), Arc::clone(&calls));
            tokio::spawn(async move {
                let secure = acceptor.accept(tcp).await?;
                speak(secure, &calls).await
            });
        }
    });
    (url, certificate.pem())
}

async fn speak(stream: TlsStream<TcpStream>, calls: &AtomicUsize) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some((head, body)) = next_request(&mut stream).await? {
        let verb = head.split(' ').next().unwrap().to_owned();
        let body = serde_json::from_slice(&body).unwrap_or_default();
        let seen = Seen { verb, head, body };
        if seen.method() == "tools/call" && calls.fetch_add(1, Ordering::Relaxed) == 1 {
            return break_off(stream.into_inner()).await;
        }
        let Say::Raw(bytes) = legacy(&seen) else { panic!("it answers at once") };
        stream.write_all(bytes.as_bytes()).await?;
        stream.flush().await?;
    }
    Ok(())
}

/// Ends the connection as one over which a record came that nobody has encrypted.
async fn break_off(stream: TlsStream<TcpStream>) -> io::Result<()> {
    let (mut tcp, mut tls) = stream.into_inner();
    let forged: Vec<u8> = [&[23_u8, 3, 3, 0, 32][..], &[0; 32]].concat();
    tls.read_tls(&mut &forged[..])?;
    assert!(tls.process_new_packets().is_err());
    let mut alert = Vec::new();
    tls.write_tls(&mut alert)?;
    tcp.write_all(&alert).await
}

#[tokio::test]
async fn an_alert_about_something_else_than_our_certificate_does_not_take_the_server_out() {
    let (url, trusted) = start().await;
    let home = tempfile::tempdir().unwrap();
    let ca = home.path().join("ca.pem");
    std::fs::write(&ca, trusted).unwrap();
    let bench = Bench::start(json!({"web": {"url": url, "tls": {"ca": ca}}}));
    bench.connected("web").await;
    bench.call("web:t", "{}").await.unwrap();
    assert_eq!(
        bench.error("web:t").await,
        "web: t: the server closed the connection without an answer: TLS: it sent the alert \
         BadRecordMac"
    );
    bench.call("web:t", "{}").await.unwrap();
    // A report of the call's would have come before this.
    within(bench.upstream("web").restart()).await.unwrap();
    let lost: Vec<String> = bench
        .events
        .lock()
        .iter()
        .filter_map(|event| match event {
            Event::Server(state) => Some(state.reason.to_string()),
            Event::Catalog { .. } | Event::Login { .. } => None,
        })
        .filter(|reason| reason.starts_with("reconnecting"))
        .collect();
    assert_eq!(lost, ["reconnecting: it was restarted by its operator"]);
    bench.stop().await;
}
