//! An identity provider that signs JWTs and publishes its keys. It can be configured to behave incorrectly.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::{Value, json};

/// Answer to a request for the keys.
#[derive(Clone)]
pub(crate) enum Keys {
    /// A response with this body.
    Body(String),
    /// No response until the test ends.
    Hang,
}

/// An issuer with an Ed25519 key, on loopback.
pub(crate) struct Issuer {
    port: u16,
    key: Mutex<(String, Ed25519KeyPair)>,
    answer: Arc<Mutex<Keys>>,
    /// Connections that receive no response.
    hanging: Arc<Mutex<Vec<TcpStream>>>,
    asked: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn pair() -> Ed25519KeyPair {
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap()
}

pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

impl Issuer {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::new(Mutex::new(Keys::Hang));
        let hanging = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&hanging);
        let (asked, ending) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let (given, count, over) = (Arc::clone(&answer), Arc::clone(&asked), Arc::clone(&ending));
        let thread = std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                if over.load(Ordering::Acquire) {
                    return;
                }
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes);
                let answer = given.lock().unwrap().clone();
                count.fetch_add(1, Ordering::AcqRel);
                match answer {
                    Keys::Hang => kept.lock().unwrap().push(stream),
                    Keys::Body(body) => {
                        let head =
                            format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", body.len());
                        let _ = stream.write_all((head + &body).as_bytes());
                    }
                }
            }
        });
        let issuer = Self {
            port,
            key: Mutex::new(("k1".to_owned(), pair())),
            answer,
            hanging,
            asked,
            ending,
            thread: Some(thread),
        };
        issuer.answers(Keys::Body(issuer.keys()));
        issuer
    }

    pub(crate) fn answers(&self, keys: Keys) {
        *self.answer.lock().unwrap() = keys;
        self.hanging.lock().unwrap().clear();
    }

    /// Number of requests for the keys.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Acquire)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Section `auth` of a proxy that trusts this issuer.
    pub(crate) fn auth(&self) -> Value {
        json!({"jwt": {"issuer": self.url(), "audience": "mcp", "jwks_url": format!("{}/jwks", self.url())}})
    }

    pub(crate) fn keys(&self) -> String {
        let key = self.key.lock().unwrap();
        let x = encoded(key.1.public_key());
        json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "kid": key.0, "x": x}]}).to_string()
    }

    /// Replaces the signing key with a new one with this id.
    pub(crate) fn rotate(&self, id: &str) {
        *self.key.lock().unwrap() = (id.to_owned(), pair());
    }

    /// Claims of a token that is valid for five minutes.
    pub(crate) fn claims(&self) -> Value {
        json!({"iss": self.url(), "aud": "mcp", "sub": "ada", "iat": unix_now(),
            "exp": unix_now() + 300, "groups": ["dev", "ops"]})
    }

    pub(crate) fn token(&self, claims: &Value) -> String {
        let key = self.key.lock().unwrap();
        let header = json!({"alg": "EdDSA", "kid": key.0, "typ": "at+jwt"}).to_string();
        let message = format!("{}.{}", encoded(header), encoded(claims.to_string()));
        format!("{message}.{}", encoded(key.1.sign(message.as_bytes())))
    }

    /// A token whose header states that it is unsigned.
    pub(crate) fn unsigned(&self, claims: &Value) -> String {
        format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(claims.to_string()))
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Release);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
