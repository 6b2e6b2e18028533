//! In which order the parts are told of another config.
//!
//! What requests are decided by is one value that is swapped whole, and first: a server or tool that comes is under the new
//! rules from its first call on. Then the tools as the operator sees them, then the servers themselves. A call that is
//! under way keeps the settings and the server it has begun with.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Reload;
use crate::catalog::Notice;
use crate::config::Config;
use crate::config::difference::{ConfigDifference, ServerFate};
use crate::intent::Requirement;
use crate::policy;
use crate::policy::host_check::BadEntry;
use crate::proxy::settings::Settings;
use crate::server::rule_watch::RulesRead;
use crate::server::{audit_events, audit_log, identity_watch};
use crate::upstream::supervisor::ServerPlan;

/// What our own tools are listed by.
fn own_tools(settings: &Settings) -> (Requirement, usize, bool) {
    (settings.policy.intent.operation_type, settings.tools_limit, settings.kept_results.is_some())
}

impl Reload {
    /// Puts `next` in force.
    pub(super) async fn apply(
        &self,
        difference: &ConfigDifference,
        next: &Config,
        rules: RulesRead,
    ) -> Result<(), BadEntry> {
        let (proxy, now) = (&self.proxy, &self.in_force);
        // Whoever has a token of another issuer is to be known at once.
        let source = next.jwt.as_ref().map(|jwt| &jwt.keys);
        let keys = match source.filter(|_| now.jwt.as_ref().map(|jwt| &jwt.keys) != source) {
            Some(source) => identity_watch::first_keys(source).await,
            None => None,
        };
        // What the config keeps in files is read, for what is secret.
        tokio::task::block_in_place(|| self.decide_by(next, rules))?;
        if next.jwt != now.jwt {
            proxy.identity.set_jwt(next.jwt.as_ref(), keys.as_ref());
        }
        if next.catalog() != now.catalog() {
            self.reconfigure(next).await;
        }
        let same = |(_, fate): &(Arc<str>, ServerFate)| *fate == ServerFate::Unchanged;
        if !difference.removed.is_empty() || !difference.servers.iter().all(same) {
            self.replace_servers(difference, next).await;
        }
        self.webhook.send_if_modified(|webhook| {
            let is_another = *webhook != next.approval.webhook;
            webhook.clone_from(&next.approval.webhook);
            is_another
        });
        self.otlp.change(&next.telemetry);
        proxy.meaning.change(next.search.embeddings.as_ref());
        if next.activity.retention() != now.activity.retention() {
            proxy.activity.keep_for(next.activity.retention());
        }
        if next.logging.level != now.logging.level {
            self.log.set(next.logging.level.as_str());
        }
        Ok(())
    }

    /// What requests are decided by from now on, in one step.
    fn decide_by(&self, next: &Config, rules: RulesRead) -> Result<(), BadEntry> {
        let proxy = &self.proxy;
        let before = proxy.settings.reader().current();
        let settings = next.settings_after(&before)?;
        let rules = match rules {
            RulesRead::Same => before.policy.rules.clone(),
            RulesRead::Others(rules) => rules,
        };
        proxy.upstreams.keep_secret(next.secrets());
        proxy.upstreams.withhold(next.withheld_variables());
        let policy = policy::Settings { rules, ..settings.policy };
        let settings = Settings { policy, ..settings };
        let others = own_tools(&before) != own_tools(&settings);
        proxy.settings.replace(settings);
        if others {
            proxy.catalog.notify(Notice::OwnTools);
        }
        Ok(())
    }

    /// The tools there are, as the operator sees them now.
    async fn reconfigure(&self, next: &Config) {
        let (catalog, settings) = (Arc::clone(&self.proxy.catalog), next.catalog());
        let done = tokio::task::spawn_blocking(move || catalog.reconfigure(settings)).await;
        let Ok(done) = done else {
            tracing::error!("the tools could not be taken over into the new config");
            return;
        };
        for (server, change) in done.known {
            let entries = audit_events::catalog_changes(&server, &change);
            audit_log::put(&self.proxy.activity, entries);
        }
        for server in done.ask_again {
            if let Some(upstream) = self.proxy.upstreams.get(&server) {
                upstream.look_again();
            }
        }
    }

    /// Has these servers begin again with the TLS that is in force for them now; calls under way end on the connections
    /// they have begun with.
    pub(super) async fn reconnect(&self, servers: &[Arc<str>]) {
        if servers.is_empty() {
            return;
        }
        let fate = |name: &Arc<str>| match servers.contains(name) {
            true => ServerFate::Replaced,
            false => ServerFate::Unchanged,
        };
        let all = self.in_force.servers.iter();
        let servers = all.map(|server| (Arc::clone(&server.name), fate(&server.name))).collect();
        let difference = ConfigDifference { servers, ..ConfigDifference::default() };
        self.replace_servers(&difference, &self.in_force).await;
    }

    async fn replace_servers(&self, difference: &ConfigDifference, next: &Config) {
        let fates: BTreeMap<&str, ServerFate> =
            difference.servers.iter().map(|(name, fate)| (&**name, *fate)).collect();
        let plan = next.servers.iter().map(|server| {
            let plan = match fates.get(&*server.name) {
                Some(ServerFate::Unchanged | ServerFate::Retuned) => {
                    ServerPlan::Stays(server.upstream.call_timeout)
                }
                Some(ServerFate::Replaced | ServerFate::Added) | None => {
                    let mut upstream = server.upstream.clone();
                    upstream.data_dir = Some(next.data_dir.clone());
                    ServerPlan::Starts(Box::new(upstream))
                }
            };
            (Arc::clone(&server.name), plan)
        });
        let replaced = self.proxy.upstreams.replace(plan.collect()).await;
        for upstream in &replaced.started {
            self.proxy.log_routing.listen(upstream);
        }
        for upstream in replaced.started.iter().chain(&replaced.retired) {
            self.proxy.list_cache.forget(upstream.name());
        }
    }
}
