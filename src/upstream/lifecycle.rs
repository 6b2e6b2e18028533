//! The protocol lifecycle with one server: `initialize` or `server/discover`, and its end.
//!
//! rmcp leads the lifecycle over our own framing, as one more user of the connection. How messages
//! travel is the business of [`super::stdio`] and [`super::http_transport`].

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitationCapability, Implementation, ProtocolVersion,
    RootsCapabilities, SamplingCapability, ServerCapabilities as RmcpCapabilities,
};
use rmcp::service::{
    ClientInitializeError, ClientLifecycleMode, RoleClient, RunningService, RxJsonRpcMessage,
    TxJsonRpcMessage, serve_client_with_lifecycle,
};
use rmcp::transport::Transport;
use rmcp::{ClientHandler, RoleClient as Role};
use tokio::sync::mpsc;

use super::error::{Cause, Human};
use super::peer::Peer;
use super::probe::Start;
use super::status::About;
use super::stdio::ChildLink;
use crate::mcp::capabilities::ServerCapabilities;
use crate::mcp::revisions::Era;

/// A running lifecycle.
pub(super) type Service = RunningService<RoleClient, Handler>;

/// What rmcp is told of us. What a server says unasked never reaches it: see
/// [`super::inbound`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Handler;

impl ClientHandler for Handler {
    /// Everything is offered, since servers hide tools from a client that cannot be asked; what
    /// the client behind a call cannot do is refused when it is asked for.
    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new(env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
        let mut capabilities = ClientCapabilities::default();
        capabilities.sampling = Some(SamplingCapability::default());
        capabilities.elicitation = Some(ElicitationCapability::default());
        capabilities.roots = Some(RootsCapabilities::default());
        ClientConfig::new(capabilities, us)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

/// What the handshake said.
#[derive(Clone, Debug, Default)]
pub(super) struct Greeting {
    pub(super) protocol_version: Option<Arc<str>>,
    /// Name and version of the server's implementation.
    pub(super) server_info: Option<Arc<str>>,
    pub(super) about: About,
}

/// Leads the handshake over a transport. The error is one line.
pub(super) async fn initialize<T>(
    peer: &Arc<Peer>,
    transport: T,
    limit: Duration,
    start: Start,
) -> Result<(Service, Greeting), String>
where
    T: Transport<Role> + 'static,
{
    let modern = || vec![ProtocolVersion::V_2026_07_28];
    let (mode, asked) = match start {
        Start::Probe => (
            ClientLifecycleMode::Auto {
                preferred_versions: modern(),
                legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
            },
            "server/discover and initialize",
        ),
        Start::Known(Era::Legacy) => (ClientLifecycleMode::Initialize, "initialize"),
        Start::Known(Era::Modern) => {
            (ClientLifecycleMode::Discover { preferred_versions: modern() }, "server/discover")
        }
    };
    let serving = serve_client_with_lifecycle(Handler, transport, mode);
    let service = match tokio::time::timeout(limit, serving).await {
        Ok(Ok(service)) => service,
        Ok(Err(error)) => return Err(reason(peer, &error)),
        Err(_) => return Err(format!("no answer to {asked} within {}", Human(limit))),
    };
    let greeting = service.peer_info().map_or_else(Greeting::default, |info| Greeting {
        protocol_version: Some(peer.quote(info.protocol_version.as_str())),
        server_info: info
            .server_info
            .as_ref()
            .map(|it| peer.quote(format!("{} {}", it.name, it.version))),
        about: About {
            era: if info.protocol_version.has_initialize() { Era::Legacy } else { Era::Modern },
            offers: offers(&info.capabilities),
        },
    });
    Ok((service, greeting))
}

fn offers(capabilities: &RmcpCapabilities) -> ServerCapabilities {
    let resources = capabilities.resources.as_ref();
    ServerCapabilities {
        tools: capabilities.tools.is_some(),
        resources: resources.is_some(),
        resource_updates: resources.is_some_and(|it| it.subscribe == Some(true)),
        prompts: capabilities.prompts.is_some(),
        completions: capabilities.completions.is_some(),
        logging: capabilities.logging.is_some(),
    }
}

fn reason(peer: &Peer, error: &ClientInitializeError) -> String {
    let text = match error {
        ClientInitializeError::ConnectionClosed(_) => {
            "it closed the connection while being initialized".to_owned()
        }
        ClientInitializeError::TransportError { error, .. } => error.error.to_string(),
        ClientInitializeError::JsonRpcError(error) => {
            format!("it refused to be initialized: {}", error.message)
        }
        // What the server said instead may be long; the log has it.
        ClientInitializeError::ExpectedInitResponse(_)
        | ClientInitializeError::ExpectedInitResult(_) => {
            "it answered initialize with something else".to_owned()
        }
        // What it said to the probe is only why it was initialized.
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
            return reason(peer, fallback);
        }
        ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => format!(
            "it speaks none of the revisions that are known here, but {}",
            server_supported.iter().map(ProtocolVersion::as_str).collect::<Vec<_>>().join(", ")
        ),
        other => other.to_string(),
    };
    peer.quote(text).to_string()
}

/// The lifecycle's end of a child's pipes.
pub(super) struct PipeTransport {
    pub(super) link: Arc<ChildLink>,
    pub(super) inbox: mpsc::Receiver<Bytes>,
    pub(super) limit: Duration,
}

/// A message of the lifecycle could not be sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Unsent(pub(super) Cause);

impl Transport<Role> for PipeTransport {
    type Error = Unsent;

    fn name() -> Cow<'static, str> {
        "stdio".into()
    }

    fn send(
        &mut self,
        item: TxJsonRpcMessage<Role>,
    ) -> impl Future<Output = Result<(), Unsent>> + Send + 'static {
        let (link, limit) = (self.link.clone(), self.limit);
        async move { link.send(encode(&item)?, limit).await.map_err(Unsent) }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<Role>> {
        loop {
            let message = self.inbox.recv().await?;
            if let Some(message) = decode(&self.link.peer, &message) {
                return Some(message);
            }
        }
    }

    async fn close(&mut self) -> Result<(), Unsent> {
        self.inbox.close();
        Ok(())
    }
}

/// A message of ours as JSON on one line.
pub(super) fn encode(item: &TxJsonRpcMessage<Role>) -> Result<Vec<u8>, Unsent> {
    serde_json::to_vec(item)
        .map_err(|error| Unsent(Cause::Unreadable { reason: error.to_string().into() }))
}

/// A message of the server for the lifecycle; what rmcp cannot read is left out.
pub(super) fn decode(peer: &Peer, message: &[u8]) -> Option<RxJsonRpcMessage<Role>> {
    match serde_json::from_slice(message) {
        Ok(message) => Some(message),
        Err(error) => {
            if peer.may_log() {
                let error = peer.quote(error.to_string());
                tracing::debug!(server = %peer.name, %error, "a message of the lifecycle cannot be read");
            }
            None
        }
    }
}
