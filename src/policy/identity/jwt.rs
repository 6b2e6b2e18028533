//! Verification of JWTs of an identity provider (RFC 7519, RFC 9068).
//!
//! The signature is verified first, with the key that the token names and an allowed algorithm that fits the key. The
//! claims are checked next: issuer, audience and expiry are required, and every claim that is read must have its type.
//! The clock is an argument.
//!
//! The keys come from the identity provider (JWKS, RFC 7517). Keys of other types, keys for encryption and malformed
//! keys are skipped. Pure.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier as SignatureVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::signature::{Error as BadSignature, Verifier};
use jsonwebtoken::{DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};
use serde::Deserialize;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::identity::{JwtRefused, MAX_TOKEN_BYTES, Proven, TokenRefused};
use crate::{JwtSubject, Principal};

/// Maximum clock skew between the issuer and this machine.
pub const LEEWAY: Duration = Duration::from_secs(60);
const MAX_SUBJECT_BYTES: usize = 255;
/// Maximum number of groups of a subject.
const MAX_GROUPS: usize = 256;
/// Maximum length of a group's name, in bytes.
const MAX_GROUP_BYTES: usize = 256;
/// Maximum length of an untrusted value quoted in an error, in characters.
const SHOWN_CHARS: usize = 32;

/// Source of the issuer's keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// The URL in `jwks_url`.
    Url(Box<str>),
    /// The path in `jwks_file`.
    File(PathBuf),
}

/// The config section `auth.jwt`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Required value of the claim `iss`.
    pub issuer: Box<str>,
    /// Required member of the claim `aud`.
    pub audience: Box<str>,
    pub keys: KeySource,
    /// Allowed algorithms.
    pub algorithms: Vec<Algorithm>,
    /// Claim that holds the groups.
    pub groups_claim: Box<str>,
}

/// Verifier for the JWTs of one issuer. Immutable; new keys require a new verifier.
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
    /// A verifier without keys, which rejects every token.
    pub fn new(settings: Settings) -> Self {
        install();
        Self { settings: Arc::new(settings), keys: Arc::default() }
    }

    pub(crate) fn with_keys(&self, keys: KeySet) -> Self {
        Self { settings: Arc::clone(&self.settings), keys: Arc::new(keys) }
    }

    pub(crate) fn with_settings(&self, settings: Settings) -> Self {
        Self { settings: Arc::new(settings), keys: Arc::clone(&self.keys) }
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Verifies `token` at wall-clock time `now`.
    pub(crate) fn prove(&self, token: &[u8], now: SystemTime) -> Result<Proven, TokenRefused> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenRefused::TooLong);
        }
        let claims = self.claims(token)?;
        Ok(self.judge(&claims, now)?)
    }

    /// Verifies the signature and returns the claims.
    fn claims(&self, token: &[u8]) -> Result<Map<String, Value>, JwtRefused> {
        let token =
            std::str::from_utf8(token).map_err(|_| JwtRefused::Malformed("it is not ASCII"))?;
        let parts = JwtRefused::Malformed("it does not have three parts");
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
        if !verifies(signature, message.as_bytes(), key, algorithm.of()) {
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

    /// Returns all groups or an error: a missing group could lift a prohibition.
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

/// A NumericDate (RFC 7519 §2), truncated to seconds.
fn moment(claims: &Map<String, Value>, name: &str) -> Result<Option<SystemTime>, JwtRefused> {
    let Some(value) = claims.get(name) else { return Ok(None) };
    let wrong = || JwtRefused::Claim(name.into(), A_TIME);
    let seconds =
        value.as_f64().filter(|seconds| (0.0..1e12).contains(seconds)).ok_or_else(wrong)?;
    let moment = UNIX_EPOCH.checked_add(Duration::from_secs(seconds as u64));
    moment.map(Some).ok_or_else(wrong)
}

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs `ring` as the signature provider of `jsonwebtoken`, without `none`, HMAC or signing. Idempotent.
pub(super) fn install() {
    // An earlier caller has installed the same provider.
    let _ = PROVIDER.install_default();
}

/// Whether `signature` (base64) is valid for `message` and `key`.
pub(super) fn verifies(
    signature: &str,
    message: &[u8],
    key: &DecodingKey,
    algorithm: jsonwebtoken::Algorithm,
) -> bool {
    jsonwebtoken::crypto::verify(signature, message, key, algorithm).unwrap_or(false)
}

fn no_signer(_: &jsonwebtoken::Algorithm, _: &EncodingKey) -> Result<Box<dyn JwtSigner>, Error> {
    Err(ErrorKind::UnsupportedAlgorithm.into())
}

/// Verification method of an algorithm.
enum Way {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

struct RingVerifier {
    algorithm: jsonwebtoken::Algorithm,
    way: Way,
    key: DecodingKeyKind,
}

fn verifier(
    algorithm: &jsonwebtoken::Algorithm,
    key: &DecodingKey,
) -> Result<Box<dyn SignatureVerifier>, Error> {
    use jsonwebtoken::Algorithm as Named;
    let way = match algorithm {
        Named::RS256 => Way::Rsa(&RSA_PKCS1_2048_8192_SHA256),
        Named::RS384 => Way::Rsa(&RSA_PKCS1_2048_8192_SHA384),
        Named::RS512 => Way::Rsa(&RSA_PKCS1_2048_8192_SHA512),
        Named::ES256 => Way::Curve(&ECDSA_P256_SHA256_FIXED),
        Named::ES384 => Way::Curve(&ECDSA_P384_SHA384_FIXED),
        Named::EdDSA => Way::Curve(&ED25519),
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(RingVerifier { algorithm: *algorithm, way, key: key.kind().clone() }))
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), BadSignature> {
        let verified = match (&self.way, &self.key) {
            (Way::Rsa(parameters), DecodingKeyKind::RsaModulusExponent { n, e }) => {
                let (n, e) = (without_zeros(n), without_zeros(e));
                RsaPublicKeyComponents { n, e }.verify(parameters, message, signature)
            }
            (Way::Curve(way), DecodingKeyKind::SecretOrDer(point)) => {
                UnparsedPublicKey::new(*way, point).verify(message, signature)
            }
            (Way::Rsa(_), DecodingKeyKind::SecretOrDer(_))
            | (Way::Curve(_), DecodingKeyKind::RsaModulusExponent { .. }) => {
                return Err(BadSignature::new());
            }
        };
        verified.map_err(|_| BadSignature::new())
    }
}

impl SignatureVerifier for RingVerifier {
    fn algorithm(&self) -> jsonwebtoken::Algorithm {
        self.algorithm
    }
}

/// Strips leading zeros, which `ring` rejects.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

pub const MAX_KEY_SET_BYTES: usize = 256 * 1024;
/// Maximum number of keys of a key set.
const MAX_KEYS: usize = 64;
/// Maximum length of a key's id, in bytes.
const MAX_ID_BYTES: usize = 512;

/// Keys that verify tokens.
#[derive(Clone, Debug, Default)]
pub struct KeySet {
    keys: Vec<SetKey>,
}

#[derive(Clone, Debug)]
struct SetKey {
    id: Option<Box<str>>,
    /// Algorithms that the key can verify, by its type and its own `alg`.
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

/// Reason why a key set is rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BadKeySet {
    #[error("the key set is larger than {MAX_KEY_SET_BYTES} bytes")]
    TooLarge,
    #[error("it is not a key set (JWKS): {0}")]
    Malformed(String),
    #[error("the key set holds more than {MAX_KEYS} keys")]
    TooMany,
    #[error("the key set holds no key of a type that is supported: RSA, P-256, P-384, Ed25519")]
    Useless,
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl KeySet {
    pub fn parse(text: &[u8]) -> Result<Self, BadKeySet> {
        if text.len() > MAX_KEY_SET_BYTES {
            return Err(BadKeySet::TooLarge);
        }
        let document: Document = serde_json::from_slice(text)
            .map_err(|error| BadKeySet::Malformed(error.to_string()))?;
        if document.keys.len() > MAX_KEYS {
            return Err(BadKeySet::TooMany);
        }
        let keys: Vec<_> = document.keys.into_iter().filter_map(SetKey::read).collect();
        if keys.is_empty() { Err(BadKeySet::Useless) } else { Ok(Self { keys }) }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The key named by `id`, if its type fits the algorithm; without an id, the only fitting key.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<&DecodingKey> {
        let mut fitting = self.keys.iter().filter(|key| {
            let named = id.is_none() || key.id.as_deref() == id;
            named && key.algorithms.contains(&algorithm)
        });
        let found = fitting.next()?;
        match (id, fitting.next()) {
            (Some(_), _) | (None, None) => Some(&found.key),
            (None, Some(_)) => None,
        }
    }
}

impl SetKey {
    fn read(value: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(value).ok()?;
        let for_signatures = match &jwk.common.public_key_use {
            None | Some(PublicKeyUse::Signature) => true,
            Some(PublicKeyUse::Encryption | PublicKeyUse::Other(_)) => false,
        };
        let operations = jwk.common.key_operations.as_ref();
        if !for_signatures
            || operations.is_some_and(|operations| !operations.contains(&KeyOperations::Verify))
        {
            return None;
        }
        // Unknown types and curves are skipped.
        let by_type: &[Algorithm] = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => &[Algorithm::Rs256, Algorithm::Rs384, Algorithm::Rs512],
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => {
                &[Algorithm::Es256]
            }
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => {
                &[Algorithm::Es384]
            }
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => {
                &[Algorithm::EdDsa]
            }
            _ => return None,
        };
        let stated = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        let fits = |algorithm: &&Algorithm| {
            stated.as_deref().is_none_or(|stated| stated == algorithm.as_str())
        };
        let algorithms: Vec<_> = by_type.iter().filter(fits).copied().collect();
        let id = jwk.common.key_id.as_deref();
        let known = !algorithms.is_empty() && id.is_none_or(|id| id.len() <= MAX_ID_BYTES);
        let id = id.map(Box::from);
        let key = DecodingKey::from_jwk(&jwk).ok().filter(|_| known)?;
        Some(Self { id, algorithms, key })
    }
}

/// Signature algorithm of a JWT. `none` and HMAC are not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Algorithm {
    #[serde(rename = "RS256")]
    Rs256,
    #[serde(rename = "RS384")]
    Rs384,
    #[serde(rename = "RS512")]
    Rs512,
    #[serde(rename = "ES256")]
    Es256,
    #[serde(rename = "ES384")]
    Es384,
    #[serde(rename = "EdDSA")]
    EdDsa,
}

impl Algorithm {
    pub(super) const ALL: [Self; 6] =
        [Self::Rs256, Self::Rs384, Self::Rs512, Self::Es256, Self::Es384, Self::EdDsa];

    /// Name in a token's header.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
        }
    }

    /// The `jsonwebtoken` equivalent.
    pub(super) fn of(self) -> jsonwebtoken::Algorithm {
        match self {
            Self::Rs256 => jsonwebtoken::Algorithm::RS256,
            Self::Rs384 => jsonwebtoken::Algorithm::RS384,
            Self::Rs512 => jsonwebtoken::Algorithm::RS512,
            Self::Es256 => jsonwebtoken::Algorithm::ES256,
            Self::Es384 => jsonwebtoken::Algorithm::ES384,
            Self::EdDsa => jsonwebtoken::Algorithm::EdDSA,
        }
    }
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
    fn issuer_token_authenticates_subject_and_groups() {
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
    fn rsa_token_verifies_with_issuer_key() {
        // Created by another program; the private key is not stored.
        let fixture: Value =
            serde_json::from_str(include_str!("../../../tests/data/identity/rs256.json")).unwrap();
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
    fn forged_token_is_refused() {
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
    fn algorithm_outside_list_or_key_type_is_rejected() {
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
        let unknown = "JWT: it is not signed with a known key of its issuer";
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
    fn token_times_allow_clock_skew() {
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
        assert_eq!(prove(&claims(), NOW - leeway - 1), early, "wall clock stepped back");
        assert_eq!(prove(&with("nbf", json!(NOW + leeway + 1)), NOW), early);
        assert_eq!(prove(&with("exp", json!(NOW as f64 + 0.5)), NOW), Ok(()));
    }

    #[test]
    fn claims_are_required_and_typed() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for (claims, text) in [
            (with("iss", json!("https://other.example")), "JWT: the issuer is not accepted"),
            (with("aud", json!("other")), "JWT: the audience is not accepted"),
            (with("aud", json!([])), "JWT: the audience is not accepted"),
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
    fn malformed_token_is_rejected() {
        let issuer = Issuer::new();
        let verifier = JwtVerifier::new(settings()).with_keys(issuer.keys());
        for token in ["", ".", "..", "a.b", "a.b.c", "a.b.c.d", "\u{fffd}"] {
            assert!(
                refused(&verifier, token, NOW).starts_with("Bearer token is not a JWT"),
                "{token}"
            );
        }
        let token = issuer.sign(&json!({"alg": "EdDSA", "kid": "ed", "crit": ["b64"]}), &claims());
        assert!(refused(&verifier, &token, NOW).contains("asks for an extension"));
        let long = "a".repeat(MAX_TOKEN_BYTES + 1);
        assert_eq!(refused(&verifier, &long, NOW), "Token is longer than 16384 bytes");
        let keyless = JwtVerifier::new(settings());
        assert!(
            refused(&keyless, &issuer.token(&claims()), NOW)
                .contains("not signed with a known key of its issuer")
        );
    }

    fn octets(length: usize) -> String {
        use base64::Engine;
        base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(vec![9; length])
    }

    fn set(keys: Value) -> Result<KeySet, BadKeySet> {
        KeySet::parse(json!({ "keys": keys }).to_string().as_bytes())
    }

    #[test]
    fn key_is_chosen_by_id_among_fitting_types() {
        let set = set(json!([
            {"kty": "RSA", "kid": "r", "n": octets(256), "e": "AQAB", "use": "sig"},
            {"kty": "RSA", "kid": "r512", "n": octets(256), "e": "AQAB", "alg": "RS512"},
            {"kty": "EC", "crv": "P-256", "kid": "e", "x": octets(32), "y": octets(32)},
            {"kty": "OKP", "crv": "Ed25519", "x": octets(32)},
            {"kty": "oct", "kid": "h", "k": octets(32)},
            {"kty": "RSA", "kid": "enc", "n": octets(256), "e": "AQAB", "use": "enc"},
            {"kty": "RSA", "kid": "wrap", "n": octets(256), "e": "AQAB", "key_ops": ["wrapKey"]},
            {"kty": "NEW", "kid": "new"},
            "no key",
        ]))
        .unwrap();
        assert_eq!(set.len(), 4);
        for (id, algorithm, found) in [
            (Some("r"), Algorithm::Rs256, true),
            (Some("r"), Algorithm::Es256, false),
            (Some("r512"), Algorithm::Rs512, true),
            (Some("r512"), Algorithm::Rs256, false),
            (Some("e"), Algorithm::Es256, true),
            (Some("e"), Algorithm::Es384, false),
            (Some("h"), Algorithm::Rs256, false),
            (Some("enc"), Algorithm::Rs256, false),
            (Some("wrap"), Algorithm::Rs256, false),
            (Some("nobody"), Algorithm::Rs256, false),
            (None, Algorithm::EdDsa, true),
            // Ambiguous, because two keys fit.
            (None, Algorithm::Rs512, false),
        ] {
            assert_eq!(set.find(id, algorithm).is_some(), found, "{id:?} {algorithm:?}");
        }
    }

    #[test]
    fn malformed_key_set_is_rejected_with_the_reason() {
        let many = json!(vec![json!({"kty": "RSA"}); MAX_KEYS + 1]);
        assert_eq!(set(many).unwrap_err(), BadKeySet::TooMany);
        assert_eq!(set(json!([])).unwrap_err(), BadKeySet::Useless);
        assert_eq!(set(json!([{"kty": "oct", "k": "AA"}])).unwrap_err(), BadKeySet::Useless);
        for text in ["", "<html>", "{}", "[]", r#"{"keys":{}}"#] {
            let bad = KeySet::parse(text.as_bytes()).unwrap_err();
            assert!(matches!(bad, BadKeySet::Malformed(_)), "{text}");
        }
        let large = vec![b' '; MAX_KEY_SET_BYTES + 1];
        assert_eq!(KeySet::parse(&large).unwrap_err(), BadKeySet::TooLarge);
    }
}
