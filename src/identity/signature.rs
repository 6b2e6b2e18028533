//! How the signature of a JWT is verified: `ring`, as `jsonwebtoken` asks for it.
//!
//! Only what an allow-list can name is there: no `none`, and no HMAC, whose key would be a public one. Nothing is signed.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{Error as BadSignature, Verifier};
use jsonwebtoken::{DecodingKey, DecodingKeyKind, EncodingKey};
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents,
    UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: no_signer,
    verifier_factory: verifier,
    key_utils: KeyUtils::new_unimplemented(),
};

/// Has this process verify by `ring`; further calls change nothing.
pub(super) fn install() {
    // Whoever was first has installed the same.
    let _ = PROVIDER.install_default();
}

/// True if `signature`, in base64, is that of `message` by `key`.
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

/// How one algorithm verifies.
enum Way {
    Rsa(&'static RsaParameters),
    Curve(&'static dyn VerificationAlgorithm),
}

/// A key with its algorithm.
struct RingVerifier {
    algorithm: jsonwebtoken::Algorithm,
    way: Way,
    key: DecodingKeyKind,
}

fn verifier(
    algorithm: &jsonwebtoken::Algorithm,
    key: &DecodingKey,
) -> Result<Box<dyn JwtVerifier>, Error> {
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

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> jsonwebtoken::Algorithm {
        self.algorithm
    }
}

/// A number as `ring` takes it: some write zeros before it.
fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}
