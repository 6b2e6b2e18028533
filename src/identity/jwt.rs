//! The JWT of an identity provider: whether it is one that counts here, and whom it is about (RFC 7519, RFC 9068).
//!
//! The signature is verified first, by the one key that the token names, and by an algorithm of the allow-list that
//! fits the key. Then the claims: issuer, audience and the end of its time must be there, and each claim that is read
//! must be of its type. The clock is an argument.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::algorithm::Algorithm;
use super::key_set::KeySet;
use super::proven::{JwtRefused, MAX_TOKEN_BYTES, Proven, TokenRefused};
use super::signature;
use crate::policy::{JwtSubject, Principal};

/// How far the clocks of the issuer and of this machine may differ.
pub const LEEWAY: Duration = Duration::from_secs(60);
/// Most bytes of a subject.
const MAX_SUBJECT_BYTES: usize = 255;
/// Most groups of a subject.
const MAX_GROUPS: usize = 256;
/// Most bytes of a group's name.
const MAX_GROUP_BYTES: usize = 256;
/// Most characters of a foreign word that are repeated in a refusal.
const SHOWN_CHARS: usize = 32;

/// Where the issuer's keys come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// `jwks_url`
    Url(Box<str>),
    /// `jwks_file`
    File(PathBuf),
}

/// The config section `auth.jwt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// `iss` of each token.
    pub issuer: Box<str>,
    /// What must be in `aud` of each token.
    pub audience: Box<str>,
    /// Where the keys are.
    pub keys: KeySource,
    /// The algorithms that count.
    pub algorithms: Vec<Algorithm>,
    /// The claim that holds the groups.
    pub groups_claim: Box<str>,
}

/// What verifies the JWTs of one issuer. Immutable; other keys make a new one.
#[derive(Clone, Debug)]
pub struct JwtVerifier {
    settings: Arc<Settings>,
    keys: Arc<KeySet>,
}

#[derive(Deserialize)]
struct JwtHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

impl JwtVerifier {
    /// One that knows no keys yet, and so refuses all.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        signature::install();
        Self { settings: Arc::new(settings), keys: Arc::default() }
    }

    /// The same with these keys.
    #[must_use]
    pub fn with_keys(&self, keys: KeySet) -> Self {
        Self { settings: Arc::clone(&self.settings), keys: Arc::new(keys) }
    }

    /// One for other settings, with the same keys.
    #[must_use]
    pub fn with_settings(&self, settings: Settings) -> Self {
        Self { settings: Arc::new(settings), keys: Arc::clone(&self.keys) }
    }

    /// What it was made of.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whom `token` is about, at the moment `now` of the clock on the wall.
    ///
    /// # Errors
    /// [`TokenRefused::Jwt`], or that it is too long.
    pub fn prove(&self, token: &[u8], now: SystemTime) -> Result<Proven, TokenRefused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefused::TooLong);
        }
        let claims = self.claims(token)?;
        Ok(self.judge(&claims, now)?)
    }

    /// The claims, once the signature was verified.
    fn claims(&self, token: &[u8]) -> Result<Map<String, Value>, JwtRefused> {
        let token =
            std::str::from_utf8(token).map_err(|_| JwtRefused::Malformed("it is not ASCII"))?;
        let parts = JwtRefused::Malformed("it has not three parts");
        let (message, signature) = token.rsplit_once('.').ok_or_else(|| parts.clone())?;
        let (header, payload) = message.split_once('.').ok_or_else(|| parts.clone())?;
        if payload.contains('.') {
            return Err(parts);
        }
        let header: JwtHeader = decoded(header)
            .and_then(|header| serde_json::from_slice(&header).ok())
            .ok_or(JwtRefused::Malformed("its header cannot be read"))?;
        if header.crit.is_some() {
            return Err(JwtRefused::Malformed("its header asks for an extension"));
        }
        let algorithm = Algorithm::ALL.into_iter().find(|known| known.as_str() == header.alg);
        let algorithm = algorithm.filter(|known| self.settings.algorithms.contains(known));
        let algorithm = algorithm.ok_or_else(|| {
            let shown = header.alg.chars().filter(|it| !it.is_control()).take(SHOWN_CHARS);
            JwtRefused::Algorithm(shown.collect())
        })?;
        let key = self.keys.find(header.kid.as_deref(), algorithm);
        let key = key.ok_or(JwtRefused::UnknownKey)?;
        if !signature::verifies(signature, message.as_bytes(), key, algorithm.of()) {
            return Err(JwtRefused::Signature);
        }
        decoded(payload)
            .and_then(|payload| serde_json::from_slice(&payload).ok())
            .ok_or(JwtRefused::Malformed("its claims cannot be read"))
    }

    fn judge(&self, claims: &Map<String, Value>, now: SystemTime) -> Result<Proven, JwtRefused> {
        if text(claims, "iss")? != &*self.settings.issuer {
            return Err(JwtRefused::Issuer);
        }
        let audience = &*self.settings.audience;
        let for_us = match claims.get("aud") {
            Some(Value::String(one)) => one == audience,
            Some(Value::Array(many)) => {
                let wrong = || JwtRefused::Claim("aud".into(), "a string, or a list of strings");
                let all: Option<Vec<&str>> = many.iter().map(Value::as_str).collect();
                all.ok_or_else(wrong)?.contains(&audience)
            }
            Some(_) | None => {
                return Err(JwtRefused::Claim("aud".into(), "a string, or a list of strings"));
            }
        };
        if !for_us {
            return Err(JwtRefused::Audience);
        }
        let Some(expires) = moment(claims, "exp")? else {
            return Err(JwtRefused::Claim("exp".into(), A_TIME));
        };
        let until = expires.checked_add(LEEWAY).ok_or(JwtRefused::Claim("exp".into(), A_TIME))?;
        let from = moment(claims, "nbf")?.max(moment(claims, "iat")?);
        let from = from.map(|from| from.checked_sub(LEEWAY).unwrap_or(UNIX_EPOCH));
        if now >= until {
            return Err(JwtRefused::Expired);
        }
        if from.is_some_and(|from| now < from) {
            return Err(JwtRefused::Early);
        }
        let subject = text(claims, "sub")?;
        if subject.is_empty()
            || subject.len() > MAX_SUBJECT_BYTES
            || subject.chars().any(char::is_control)
        {
            return Err(JwtRefused::Claim(
                "sub".into(),
                "of 1 to 255 bytes, without control characters",
            ));
        }
        let subject = JwtSubject::new(subject, self.groups(claims)?, until);
        Ok(Proven { principal: Principal::Subject(Arc::new(subject)), from, until: Some(until) })
    }

    /// All of them or none: without one of its groups a subject might be allowed what is forbidden to it.
    fn groups(&self, claims: &Map<String, Value>) -> Result<Vec<Box<str>>, JwtRefused> {
        let name = &self.settings.groups_claim;
        let wrong = || {
            JwtRefused::Claim(name.clone(), "a list of at most 256 strings of at most 256 bytes")
        };
        let groups = match claims.get(&**name) {
            None => return Ok(Vec::new()),
            Some(Value::Array(groups)) if groups.len() <= MAX_GROUPS => groups,
            Some(_) => return Err(wrong()),
        };
        let group = |group: &Value| match group.as_str() {
            Some(text) if text.len() <= MAX_GROUP_BYTES => Ok(Box::from(text)),
            Some(_) | None => Err(wrong()),
        };
        groups.iter().map(group).collect()
    }
}

const A_TIME: &str = "a time in seconds";

fn decoded(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

fn text<'a>(claims: &'a Map<String, Value>, name: &str) -> Result<&'a str, JwtRefused> {
    let value = claims.get(name).and_then(Value::as_str);
    value.ok_or_else(|| JwtRefused::Claim(name.into(), "a string"))
}

/// A time (RFC 7519 §2, NumericDate), whole seconds of it.
fn moment(claims: &Map<String, Value>, name: &str) -> Result<Option<SystemTime>, JwtRefused> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let wrong = || JwtRefused::Claim(name.into(), A_TIME);
    let seconds =
        value.as_f64().filter(|seconds| (0.0..1e12).contains(seconds)).ok_or_else(wrong)?;
    let moment = UNIX_EPOCH.checked_add(Duration::from_secs(seconds as u64));
    moment.map(Some).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use ring::rand::SystemRandom;
    use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair};
    use serde_json::json;

    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn encoded(bytes: impl AsRef<[u8]>) -> String {
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// An issuer with an Ed25519 key `ed` and a P-256 key `ec`.
    struct Issuer {
        ed: Ed25519KeyPair,
        ec: EcdsaKeyPair,
    }

    impl Issuer {
        fn new() -> Self {
            let random = SystemRandom::new();
            let ed = Ed25519KeyPair::generate_pkcs8(&random).unwrap();
            let way = &ECDSA_P256_SHA256_FIXED_SIGNING;
            let ec = EcdsaKeyPair::generate_pkcs8(way, &random).unwrap();
            Self {
                ed: Ed25519KeyPair::from_pkcs8(ed.as_ref()).unwrap(),
                ec: EcdsaKeyPair::from_pkcs8(way, ec.as_ref(), &random).unwrap(),
            }
        }

        fn keys(&self) -> KeySet {
            let point = self.ec.public_key().as_ref();
            let keys = json!({"keys": [
                {"kty": "OKP", "crv": "Ed25519", "kid": "ed", "x": encoded(self.ed.public_key())},
                {"kty": "EC", "crv": "P-256", "kid": "ec", "x": encoded(&point[1..33]),
                 "y": encoded(&point[33..])},
            ]});
            KeySet::parse(keys.to_string().as_bytes()).unwrap()
        }

        fn sign(&self, header: &Value, claims: &Value) -> String {
            let message =
                format!("{}.{}", encoded(header.to_string()), encoded(claims.to_string()));
            let signature = match header["alg"].as_str() {
                Some("ES256") => {
                    let signed = self.ec.sign(&SystemRandom::new(), message.as_bytes()).unwrap();
                    encoded(signed)
                }
                _ => encoded(self.ed.sign(message.as_bytes())),
            };
            format!("{message}.{signature}")
        }

        fn token(&self, claims: &Value) -> String {
            self.sign(&json!({"alg": "EdDSA", "kid": "ed"}), claims)
        }
    }

    fn settings() -> Settings {
        Settings {
            issuer: "https://issuer.example".into(),
            audience: "mcp".into(),
            keys: KeySource::Url("https://issuer.example/jwks".into()),
            algorithms: vec![Algorithm::Rs256, Algorithm::Es256, Algorithm::EdDsa],
            groups_claim: "groups".into(),
        }
    }

    fn claims() -> Value {
        json!({"iss": "https://issuer.example", "aud": "mcp", "sub": "ada", "exp": NOW + 300,
            "iat": NOW, "groups": ["dev", "ops"]})
    }

    fn with(name: &str, value: Value) -> Value {
        let mut claims = claims();
        claims[name] = value;
        claims
    }

    fn without(name: &str) -> Value {
        let mut claims = claims();
        claims.as_object_mut().unwrap().remove(name);
        claims
    }

    fn refused(verifier: &JwtVerifier, token: &str, now: u64) -> String {
        verifier.prove(token.as_bytes(), at(now)).unwrap_err().to_string()
    }

    #[test]
    fn a_token_of_the_issuer_proves_its_subject_and_groups() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for header in [
            json!({"alg": "EdDSA", "kid": "ed"}),
            json!({"alg": "ES256", "kid": "ec"}),
            json!({"alg": "ES256", "typ": "at+jwt"}),
        ] {
            let token = issuer.sign(&header, &with("aud", json!(["other", "mcp"])));
            let proof = verifier.prove(token.as_bytes(), at(NOW)).unwrap();
            assert_eq!(proof.principal.id(), "jwt:ada");
            assert_eq!(proof.principal.groups(), ["dev".into(), "ops".into()]);
            assert_eq!(proof.until, Some(at(NOW + 300) + LEEWAY));
        }
        let token = issuer.token(&without("groups"));
        assert!(verifier.prove(token.as_bytes(), at(NOW)).unwrap().principal.groups().is_empty());
    }

    #[test]
    fn a_token_by_rsa_verifies_with_the_key_of_its_issuer() {
        // Made once by another program; the private key is nowhere.
        let fixture: Value =
            serde_json::from_str(include_str!("../../tests/data/identity/rs256.json")).unwrap();
        let keys = KeySet::parse(fixture["jwks"].to_string().as_bytes()).unwrap();
        let verifier = JwtVerifier::new(settings()).with_keys(keys);
        let token = fixture["token"].as_str().unwrap();
        let proof = verifier.prove(token.as_bytes(), at(NOW)).unwrap();
        assert_eq!(proof.principal.id(), "jwt:ada");
        let (rest, last) = token.split_at(token.len() - 40);
        let forged =
            format!("{rest}{}{}", if last.starts_with('A') { 'B' } else { 'A' }, &last[1..]);
        assert_eq!(refused(&verifier, &forged, NOW), "JWT: its signature is wrong");
    }

    #[test]
    fn a_forged_token_is_refused() {
        let (issuer, stranger) = (Issuer::new(), Issuer::new());
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        let wrong = "JWT: its signature is wrong";
        assert_eq!(refused(&verifier, &stranger.token(&claims()), NOW), wrong);
        let token = issuer.token(&claims());
        let (header, rest) = token.split_once('.').unwrap();
        let (_, signature) = rest.split_once('.').unwrap();
        let altered = encoded(with("sub", json!("root")).to_string());
        assert_eq!(refused(&verifier, &format!("{header}.{altered}.{signature}"), NOW), wrong);
        assert_eq!(refused(&verifier, &format!("{header}.{altered}."), NOW), wrong);
    }

    #[test]
    fn an_algorithm_beside_the_list_or_the_type_of_the_key_is_refused() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for algorithm in ["none", "None", "HS256", "RS384", "PS256", ""] {
            let token = issuer.sign(&json!({"alg": algorithm, "kid": "ed"}), &claims());
            let text = format!("JWT: algorithm '{algorithm}' is not allowed");
            assert_eq!(refused(&verifier, &token, NOW), text);
        }
        let unsigned =
            format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(claims().to_string()));
        assert_eq!(refused(&verifier, &unsigned, NOW), "JWT: algorithm 'none' is not allowed");
        let unknown = "JWT: it is signed with no key of its issuer that is known";
        for header in [
            json!({"alg": "ES256", "kid": "ed"}),
            json!({"alg": "RS256", "kid": "ec"}),
            json!({"alg": "EdDSA", "kid": "another"}),
        ] {
            assert_eq!(refused(&verifier, &issuer.sign(&header, &claims()), NOW), unknown);
        }
        let narrow = Settings { algorithms: vec![Algorithm::Rs256], ..settings() };
        let verifier = JwtVerifier::new(narrow).with_keys(issuer.keys());
        let text = "JWT: algorithm 'EdDSA' is not allowed";
        assert_eq!(refused(&verifier, &issuer.token(&claims()), NOW), text);
    }

    #[test]
    fn the_time_of_a_token_is_looked_at_with_a_leeway() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        let prove = |claims: &Value, now: u64| {
            let proof = verifier.prove(issuer.token(claims).as_bytes(), at(now));
            proof.map(|_| ()).map_err(|error| error.to_string())
        };
        let leeway = LEEWAY.as_secs();
        let expired = Err("JWT: it has expired".to_owned());
        let early = Err("JWT: it is not valid yet".to_owned());
        assert_eq!(prove(&claims(), NOW + 300 + leeway - 1), Ok(()));
        assert_eq!(prove(&claims(), NOW + 300 + leeway), expired);
        assert_eq!(prove(&claims(), NOW - leeway), Ok(()));
        assert_eq!(prove(&claims(), NOW - leeway - 1), early, "a clock that was put back");
        assert_eq!(prove(&with("nbf", json!(NOW + leeway + 1)), NOW), early);
        assert_eq!(prove(&with("exp", json!(NOW as f64 + 0.5)), NOW), Ok(()));
    }

    #[test]
    fn claims_must_be_there_and_of_their_types() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for (claims, text) in [
            (with("iss", json!("https://other.example")), "JWT: it is from another issuer"),
            (with("aud", json!("other")), "JWT: it is for another audience"),
            (with("aud", json!([])), "JWT: it is for another audience"),
            (without("iss"), "JWT: claim 'iss' must be a string"),
            (without("aud"), "JWT: claim 'aud' must be a string, or a list of strings"),
            (
                with("aud", json!(["mcp", 1])),
                "JWT: claim 'aud' must be a string, or a list of strings",
            ),
            (without("exp"), "JWT: claim 'exp' must be a time in seconds"),
            (with("exp", json!("9999999999")), "JWT: claim 'exp' must be a time in seconds"),
            (with("exp", json!(-1)), "JWT: claim 'exp' must be a time in seconds"),
            (with("exp", json!(1e300)), "JWT: claim 'exp' must be a time in seconds"),
            (with("nbf", json!(null)), "JWT: claim 'nbf' must be a time in seconds"),
            (without("sub"), "JWT: claim 'sub' must be a string"),
            (with("sub", json!(7)), "JWT: claim 'sub' must be a string"),
            (
                with("sub", json!("a\nb")),
                "JWT: claim 'sub' must be of 1 to 255 bytes, without control characters",
            ),
            (
                with("groups", json!("dev")),
                "JWT: claim 'groups' must be a list of at most 256 strings of at most 256 bytes",
            ),
            (
                with("groups", json!(["dev", 1])),
                "JWT: claim 'groups' must be a list of at most 256 strings of at most 256 bytes",
            ),
        ] {
            assert_eq!(refused(&verifier, &issuer.token(&claims), NOW), text);
        }
    }

    #[test]
    fn what_has_not_the_form_of_a_token_is_refused() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for token in ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "\u{fffd}"] {
            assert!(
                refused(&verifier, token, NOW).starts_with("Bearer token is no JWT"),
                "{token}"
            );
        }
        let token = issuer.sign(&json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"]}), &claims());
        assert!(refused(&verifier, &token, NOW).contains("asks for an extension"));
        let long = "a".repeat(MAX_TOKEN_BYTES + 1);
        assert_eq!(refused(&verifier, &long, NOW), "Token is longer than 16384 bytes");
        let keyless = JwtVerifier::new(settings());
        assert!(refused(&keyless, &issuer.token(&claims()), NOW).contains("no key of its issuer"));
    }
}
