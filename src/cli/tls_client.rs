//! TLS to a proxy that already runs. Whose certificate it is shows afterwards, by the proof.
//!
//! Every certificate is taken whose key the other end has. No authority is asked and no name compared: the server's
//! own certificate is in the proof that it knows the API key (`api::proof`), which comes before anything is sent that
//! somebody on the way must not read. So a certificate that was renewed, is self-signed or for another name does no harm.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::io::tls::{Fingerprint, fingerprint, provider};

/// Leads the handshake; also which certificate the server has shown.
///
/// # Errors
/// The connection's, and that of a server that does not speak TLS.
pub(super) async fn shake(
    stream: TcpStream,
    dialled: SocketAddr,
) -> io::Result<(TlsStream<TcpStream>, Fingerprint)> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
    let builder = builder.with_safe_default_protocol_versions().map_err(io::Error::other)?;
    let verifier = Arc::new(ProvenLater(provider));
    let config =
        builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let name = ServerName::from(dialled.ip());
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    let shown = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let shown = shown.map(|leaf| fingerprint(leaf));
    let shown = shown.ok_or_else(|| io::Error::other("the server has shown no certificate"))?;
    Ok((stream, shown))
}

/// Takes every certificate whose key the other end has.
#[derive(Debug)]
struct ProvenLater(Arc<CryptoProvider>);

impl ServerCertVerifier for ProvenLater {
    fn verify_server_cert(
        &self,
        _certificate: &CertificateDer<'_>,
        _chain: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _stapled: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
