//! An operator approves what waits: the definition that was seen, and no other.
//!
//! An approval names the digest of what was looked at. If the server has changed it since, it is refused, and there is
//! something else to look at. Who may approve, and what goes on record, is the face's.

use std::sync::Arc;

use super::Catalog;
use super::definition::DefinitionDigest;
use super::pins::{AcceptedDefinition, Pin, PinHistory};
use super::replacing::assembled;
use super::snapshot::{DirectTool, Reviewed, Snapshot};
use crate::tool::{ToolName, Trust};

/// What is approved: a tool, or all that waits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApprovalTarget {
    /// One tool.
    OneTool(ToolName),
    /// All tools of this server that are in quarantine.
    WholeServer(Arc<str>),
}

/// Why an approval is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApprovalRefused {
    /// Nothing of it waits for approval.
    #[error("Nothing of '{0}' waits for approval")]
    NothingWaits(String),
    /// It is not what was seen.
    #[error("'{0}' has changed since it was looked at: look again at its diff")]
    Changed(String),
    /// The catalog could not do it.
    #[error("'{0}' could not be approved")]
    Failed(String),
}

/// What was approved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovedTools {
    /// The tools, and the definitions that are trusted from now on.
    pub tools: Vec<(ToolName, DefinitionDigest)>,
    /// Why this will not outlast a restart, if it will not.
    pub disk: Option<String>,
}

impl ApprovalTarget {
    /// What `name` means: a tool as `server:tool`, or a server.
    #[must_use]
    pub fn named(snapshot: &Snapshot, name: &str) -> Option<Self> {
        let tool = ToolName::parse(name).filter(|name| snapshot.tool(name).is_some());
        let server =
            || snapshot.servers().map(|(server, _)| server).find(|server| ***server == *name);
        tool.map(Self::OneTool).or_else(|| server().cloned().map(Self::WholeServer))
    }

    /// The tools that are meant: the one, in quarantine or not; of a server those in quarantine.
    #[must_use]
    pub fn tools<'a>(&self, snapshot: &'a Snapshot) -> Vec<Reviewed<'a>> {
        match self {
            Self::OneTool(name) => snapshot.reviewed(name).into_iter().collect(),
            Self::WholeServer(server) => snapshot.quarantined(server),
        }
    }

    /// The identity of what is to be looked at.
    #[must_use]
    pub fn digest(&self, tools: &[Reviewed<'_>]) -> DefinitionDigest {
        match (self, tools) {
            (Self::OneTool(_), [one]) => one.digest,
            (Self::OneTool(_) | Self::WholeServer(_), _) => DefinitionDigest::of_all(
                tools.iter().map(|reviewed| (&*reviewed.tool.name.tool, reviewed.digest)),
            ),
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::OneTool(name) => name.to_string(),
            Self::WholeServer(server) => server.to_string(),
        }
    }

    fn server(&self) -> &Arc<str> {
        match self {
            Self::OneTool(name) => &name.server,
            Self::WholeServer(server) => server,
        }
    }
}

impl Catalog {
    /// Trusts what waits, if it is what was seen. It counts for the next call, and is on disk when this ends.
    ///
    /// # Errors
    /// [`ApprovalRefused`]; nothing is another then.
    pub async fn approve(
        self: &Arc<Self>,
        target: ApprovalTarget,
        seen: DefinitionDigest,
    ) -> Result<ApprovedTools, ApprovalRefused> {
        let (catalog, name) = (Arc::clone(self), target.name());
        let done = self.threads.run(move || {
            let tools = catalog.trust(&target, seen)?;
            Ok(ApprovedTools { tools, disk: catalog.write_pins() })
        });
        done.await.unwrap_or(Err(ApprovalRefused::Failed(name)))
    }

    fn trust(
        &self,
        target: &ApprovalTarget,
        seen: DefinitionDigest,
    ) -> Result<Vec<(ToolName, DefinitionDigest)>, ApprovalRefused> {
        let _writing = self.writing.lock();
        let last = self.load();
        let mut tools = target.tools(&last);
        if target.digest(&tools) != seen && tools.iter().any(|it| it.tool.trust == Trust::Withheld)
        {
            return Err(ApprovalRefused::Changed(target.name()));
        }
        tools.retain(|reviewed| reviewed.tool.trust == Trust::Withheld);
        let mut servers = last.servers.clone();
        let (Some(known), false) = (servers.get_mut(target.server()), tools.is_empty()) else {
            return Err(ApprovalRefused::NothingWaits(target.name()));
        };
        let mut pins = known.pins.pins().map(|pins| (**pins).clone()).unwrap_or_default();
        for Reviewed { tool, digest, pin, .. } in &tools {
            let accepted = AcceptedDefinition { digest: *digest, listed: None, by_operator: true };
            let told = pin.and_then(|pin| pin.told);
            let pin = Pin { accepted: Some(accepted), held: None, told };
            pins.0.insert(Arc::clone(&tool.name.tool), pin);
        }
        known.pins = PinHistory::Known(Arc::new(pins));
        let trusted = |direct: &DirectTool| {
            let meant = tools.iter().any(|reviewed| Arc::ptr_eq(reviewed.tool, &direct.tool));
            match meant {
                true => DirectTool {
                    tool: Arc::new(direct.tool.trusted(Trust::Given)),
                    ..direct.clone()
                },
                false => direct.clone(),
            }
        };
        let direct = last.direct.iter().map(trusted).collect();
        let approved = tools.iter().map(|it| (it.tool.name.clone(), it.digest)).collect();
        self.published.swap(assembled(direct, servers, Arc::clone(&last.index)), true);
        Ok(approved)
    }
}
