//! Admission of a request on its record: argument validation, the decision, waits for a person or a limit, and the
//! decision after each wait.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use mcpproxy_activity::record::Status;
use mcpproxy_policy as policy;
use mcpproxy_policy::intent::{Intent, Operation};
use mcpproxy_policy::tool::{Annotations, Exposure, Rules, Tool, ToolName, Trust, World};
use mcpproxy_policy::{
    Access, Admission, AdmissionRequest, ApprovalDenial, Approved, Denial, Forecast, LimitDecision,
    Mismatch, NotApproved, PendingApproval, Permit, Queued, ToolAccess,
};
use mcpproxy_protocol::mcp::meta;
use mcpproxy_runtime::io::clock;
use mcpproxy_schema::violation::Violation;
use mcpproxy_upstream::CallExtras;

use super::record::{INPUTS, META};
use super::{OfferExposure, OnRecord};
use crate::proxy::advice;
use crate::proxy::advice::nearest_shown_tools;
use crate::proxy::approval;
use crate::proxy::approval::{PresentedState, RepeatedRequest, WaitingCall};
use crate::proxy::client::Client;
use crate::proxy::passthrough::revocation;
use crate::proxy::passthrough::subscribers::{ResourceSubscription, Subscribing};
use crate::proxy::refusal::{FIND_TOOLS, Refusal, RefusalKind, Stopped};
use crate::proxy::tasks::related as related_tasks;

/// Outcome of validating arguments before admission.
pub(in crate::proxy) enum JudgedArguments {
    /// Arguments that conform, or are not validated.
    Settled,
    /// The schema is not compiled yet, or validation would delay other calls for too long.
    Later(Access),
    Violate(Box<Violation>),
}

/// Request that is not permitted at once.
enum Undecided {
    /// Its arguments may not conform, or it presents state.
    Request(Access, JudgedArguments),
    /// It must wait, or is denied.
    Admission(Admission),
}

/// Admission of a request after its wait in a queue.
enum QueueOutcome {
    Permit(Permit),
    /// An approval is required now.
    Asks(PendingApproval),
}

impl OnRecord<'_> {
    /// Asks for admission of `access` and records warnings and denials. `arguments` are those sent to the server;
    /// the tool's schema validates, and may coerce, them before a person is asked. `extras` are the other members.
    /// Waits for a required approval (CAP-8); in a repeated request, `extras` is replaced by that of the first one.
    pub(in crate::proxy) async fn admit(
        &mut self,
        access: Access,
        arguments: &mut Bytes,
        intent: Option<Intent<'_>>,
        extras: &mut CallExtras,
    ) -> Result<Permit, Stopped> {
        related_tasks::open(&self.worker.proxy.approvals, &self.caller.principal, &access, extras);
        self.keep_meta(extras.meta.as_deref());
        let is_all_shown = policy::visible(&self.caller.principal, &self.settings.policy).is_all();
        let perhaps_hidden = access.tool().filter(|_| !is_all_shown).cloned();
        let undecided = match self.judge_at_once(&access, arguments) {
            JudgedArguments::Settled if extras.members.is_empty() => {
                match self.decide(access, arguments, intent, self.record.time_of_day()) {
                    Admission::Permit(permit) => {
                        self.permitted(&permit, intent);
                        return Ok(permit);
                    }
                    admission => Undecided::Admission(admission),
                }
            }
            judged => Undecided::Request(access, judged),
        };
        // This future is rare and large, so it is boxed to keep it out of every call's future.
        let admitting =
            Box::pin(self.admit_undecided(undecided, perhaps_hidden, arguments, intent, extras));
        let permit = admitting.await?;
        self.permitted(&permit, intent);
        Ok(permit)
    }

    /// Records those members of `_meta` that are part of an approval.
    fn keep_meta(&mut self, meta: Option<&[u8]>) {
        let carried = self.record.carried();
        let baggage = carried.as_ref().and_then(|carried| carried.baggage.as_deref());
        if let Some(meta) = meta::asked(meta, baggage) {
            self.record.keep_member(META, &meta);
            self.meta = meta.into();
        }
    }

    /// Admits a request that is not permitted at once. `perhaps_hidden` is its tool if some tools are not visible to
    /// the caller.
    async fn admit_undecided(
        &mut self,
        undecided: Undecided,
        perhaps_hidden: Option<Arc<Tool>>,
        arguments: &mut Bytes,
        intent: Option<Intent<'_>>,
        extras: &mut CallExtras,
    ) -> Result<Permit, Stopped> {
        let (mut admission, repeated, mut unjudged) = match undecided {
            Undecided::Admission(admission) => (admission, None, None),
            Undecided::Request(access, judged) => {
                let unjudged = match judged {
                    JudgedArguments::Settled => None,
                    JudgedArguments::Later(access) => Some(access),
                    JudgedArguments::Violate(violation) => {
                        let coerced =
                            self.coerced_or_refused(&access, arguments, intent, &violation);
                        if let Some(coerced) = coerced.await? {
                            *arguments = coerced;
                        }
                        None
                    }
                };
                let repeated = self.presented(&access, extras)?;
                let now = self.record.time_of_day();
                (self.decide(access, arguments, intent, now), repeated, unjudged)
            }
        };
        loop {
            let unjudged = unjudged.take();
            let access = match admission {
                Admission::Permit(permit) => {
                    let coerced = self.judge_rest(unjudged, arguments, intent).await?;
                    self.release(repeated.as_ref(), permit.access(), extras)?;
                    match coerced {
                        None => return Ok(permit),
                        Some(_) => {
                            return self.admit_coerced(permit, arguments, intent, extras).await;
                        }
                    }
                }
                Admission::Queued(queued) => {
                    self.release(repeated.as_ref(), queued.access(), extras)?;
                    let outcome = self.wait_in_queue(queued, arguments, intent, None).await?;
                    // Arguments are validated after the wait in the queue, so that a call is not in a queue while it
                    // waits for validation.
                    let coerced = self.judge_rest(unjudged, arguments, intent).await?;
                    match (outcome, coerced) {
                        (QueueOutcome::Permit(permit), None) => return Ok(permit),
                        (QueueOutcome::Permit(permit), Some(_)) => {
                            return self.admit_coerced(permit, arguments, intent, extras).await;
                        }
                        (QueueOutcome::Asks(pending), None) => {
                            return self.approved(pending, arguments, intent, extras, None).await;
                        }
                        // The pending approval is for the original arguments, so the coerced ones are decided again.
                        (QueueOutcome::Asks(_), Some(access)) => access,
                    }
                }
                Admission::Denial(denial) => {
                    if let (Denial::Rule(_), Some(access)) = (&denial, unjudged)
                        && let Some(coerced) = self.coerced_later(&access, arguments).await
                    {
                        // The rule may have denied the call only because of a string that is now coerced.
                        *arguments = coerced;
                        access
                    } else {
                        if let Some(tool) = perhaps_hidden.filter(|tool| !self.is_shown(tool)) {
                            return Err(self.hidden(&tool, &denial, arguments, intent).into());
                        }
                        let help = help(&denial, arguments, intent, |tool| self.shows(tool));
                        return Err(self.denied(&denial).helping(help).into());
                    }
                }
                Admission::Pending(pending) => {
                    match self.judge_rest(unjudged, arguments, intent).await? {
                        // The pending approval is for the original arguments, so the coerced ones are decided again.
                        Some(access) => access,
                        None => {
                            self.record.found(&self.worker.proxy.upstreams);
                            return self
                                .approved(pending, arguments, intent, extras, repeated)
                                .await;
                        }
                    }
                }
            };
            admission = self.decide(access, arguments, intent, self.record.time_of_day());
        }
    }

    /// State that the request presents in `extras`, which keep only members for the server. Returns the first request
    /// if this one repeats it.
    fn presented(
        &mut self,
        access: &Access,
        extras: &mut CallExtras,
    ) -> Result<Option<RepeatedRequest>, Stopped> {
        if extras.members.is_empty() {
            return Ok(None);
        }
        let (worker, caller, record) = (self.worker, self.caller, &mut *self.record);
        let state = approval::presented_state(worker, caller, record, access, &extras.members)?;
        let repeated = match state {
            PresentedState::None | PresentedState::Held => None,
            PresentedState::Approval(repeated) => Some(repeated),
            PresentedState::Server(members) => {
                extras.members = members;
                None
            }
        };
        if !extras.members.is_empty() {
            self.keep_inputs(repeated.as_ref(), &extras.members);
        }
        Ok(repeated)
    }

    /// Validates arguments that could not be validated immediately. Returns the access if the arguments were coerced,
    /// so that the access is decided again.
    async fn judge_rest(
        &mut self,
        unjudged: Option<Access>,
        arguments: &mut Bytes,
        intent: Option<Intent<'_>>,
    ) -> Result<Option<Access>, Refusal> {
        let Some(access) = unjudged else { return Ok(None) };
        match self.judge_later(&access, arguments, intent).await? {
            Some(coerced) => {
                *arguments = coerced;
                Ok(Some(access))
            }
            None => Ok(None),
        }
    }

    /// Admits a request without arguments that is answered immediately. It does not wait for a server's answer and
    /// therefore does not need a slot under the limits.
    pub(in crate::proxy) fn admit_at_once(&mut self, access: Access) -> Result<(), Refusal> {
        match self.decide(access, b"", None, self.record.time_of_day()) {
            Admission::Permit(permit) => {
                self.permitted(&permit, None);
                Ok(())
            }
            Admission::Queued(_) => Ok(()),
            Admission::Denial(denial) => Err(self.denied(&denial)),
            Admission::Pending(pending) => {
                let denial = ApprovalDenial::new(pending.access(), NotApproved::ByFilter);
                Err(self.denied(&denial.into()))
            }
        }
    }

    /// The caller as a subscriber to a resource, admitted by `access`.
    pub(in crate::proxy) fn subscribing(&self, client: &Client, access: Access) -> Subscribing {
        let forecast = self.forecast(access, b"", None);
        Subscribing {
            principal: self.caller.principal.clone(),
            session_id: Arc::clone(&client.session_id),
            client_name: Arc::clone(&client.name),
            facts: client.facts.get(),
            is_approved: matches!(forecast, Forecast::Asked { .. }),
        }
    }

    /// Re-evaluates a new subscription if the settings were replaced since its admission; later replacements
    /// re-evaluate the table.
    pub(in crate::proxy) fn confirm(
        &mut self,
        subscription: &ResourceSubscription,
    ) -> Result<(), Refusal> {
        if self.worker.settings().is(&self.settings) {
            return Ok(());
        }
        let subscriber = subscription.requested();
        let of = &subscriber.of;
        let denial = revocation::denial(&self.worker.proxy, subscriber, &of.principal, of.facts);
        match denial.or_else(|| revocation::of_revoked(subscriber)) {
            Some(denial) => Err(self.denied(&denial)),
            None => Ok(()),
        }
    }

    /// Whether the tool is visible to the caller and callable.
    fn shows(&self, tool: &ToolName) -> bool {
        let snapshot = self.worker.proxy.catalog.load();
        let visible = policy::visible(&self.caller.principal, &self.settings.policy);
        let shown = |tool: &Arc<Tool>| tool.trust == Trust::Given && visible.tool(tool);
        snapshot.tool(tool).is_some_and(shown)
    }

    /// Whether lists show the tool to the caller, withheld or not.
    fn is_shown(&self, tool: &Arc<Tool>) -> bool {
        policy::visible(&self.caller.principal, &self.settings.policy).tool(tool)
    }

    /// Refusal of an invisible tool, identical to that of an unknown one ([`Self::unknown`]). The record has the
    /// actual reason.
    fn hidden(
        &mut self,
        tool: &Arc<Tool>,
        denial: &Denial,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
    ) -> Refusal {
        let name = &tool.name;
        // A wrong intent is not the reason if a rule hides the tool.
        let hiding = match denial {
            Denial::Scope { .. } | Denial::Rule(_) => None,
            _ => {
                let access = Access::Tool(ToolAccess::direct(Arc::clone(tool)));
                self.refused_by_name(access, arguments, None)
            }
        };
        self.denied(hiding.as_ref().unwrap_or(denial));
        let by_name = self.denial_of_name(name, arguments, intent);
        let refusal = match &by_name {
            Some(denial) => Refusal::rejected(RefusalKind::Gate, denial.to_string()),
            None => Refusal::no_tool(name),
        };
        // Unlike an unknown tool, the call is recorded as refused. The denial is permanent, regardless of the text.
        Refusal { status: Status::Rejected, may_pass: false, ..refusal }
            .helping(self.nearest_tools(name, by_name.as_ref()))
    }

    /// Tools with similar names; none if the token's scope is the reason, since another spelling would not help.
    fn nearest_tools(&self, name: &ToolName, denial: Option<&Denial>) -> String {
        match denial {
            Some(Denial::Scope { .. }) => String::new(),
            _ => nearest_shown_tools(self.worker, self.caller, &self.settings, &name.to_string()),
        }
    }

    /// Refusal of an unknown tool. A denial of its name by scope or rules takes precedence, as for a known tool.
    pub(in crate::proxy) fn unknown(
        &mut self,
        name: &ToolName,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        otherwise: Refusal,
    ) -> Refusal {
        self.record.addressed(&self.worker.proxy.upstreams);
        match self.denial_of_name(name, arguments, intent) {
            Some(denial) => {
                let help = self.nearest_tools(name, Some(&denial));
                self.record.deny(&denial).helping(help)
            }
            None => otherwise,
        }
    }

    /// Denial by scope or rules of a tool known by name only, assuming a matching intent.
    fn denial_of_name(
        &self,
        name: &ToolName,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
    ) -> Option<Denial> {
        let operation = intent.map(|intent| intent.operation());
        let annotations = Annotations {
            read_only_hint: (operation == Some(Operation::Read)).then_some(true),
            destructive_hint: (operation == Some(Operation::Destructive)).then_some(true),
            ..Annotations::default()
        };
        let tool = Arc::new(Tool::named(name.clone(), annotations, &Rules::default()));
        let access = Access::Tool(match &intent {
            Some(intent) => ToolAccess::declared(tool, intent),
            None => ToolAccess::direct(tool),
        });
        self.refused_by_name(access, arguments, intent)
    }

    /// Denial by scope or rules of a target known by name only.
    pub(in crate::proxy) fn refused_by_name(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
    ) -> Option<Denial> {
        match self.forecast(access, arguments, intent) {
            Forecast::Refused(denial @ (Denial::Scope { .. } | Denial::Rule(_))) => Some(denial),
            Forecast::Refused(_) | Forecast::Allowed { .. } | Forecast::Asked { .. } => None,
        }
    }

    fn denied(&mut self, denial: &Denial) -> Refusal {
        self.record.found(&self.worker.proxy.upstreams);
        self.record.deny(denial)
    }

    /// Records the permitted request.
    fn permitted(&mut self, permit: &Permit, intent: Option<Intent<'_>>) {
        let access = permit.access();
        self.record.set_target(access);
        let called = (&**access.server(), access.label());
        self.record.warn(&self.caller.principal, called, permit.warnings());
        self.record.permitted_by(permit.rules());
        let facts = &self.facts;
        facts.permitted(intent.and_then(|intent| intent.sensitivity()));
        let exposure = access.tool().map_or(self.offer.exposure, |tool| tool.exposure);
        self.rise = facts.rise(exposure);
    }

    /// Raises the facts for content of this exposure that reaches the caller outside of a server's answer.
    pub(in crate::proxy) fn raise_facts(&self, exposure: Exposure) {
        if let Some(rise) = self.facts.rise(exposure) {
            rise.answered(&self.worker.proxy.principal_facts);
        }
    }

    /// Sets the server of a request other than a tool call, and whether it `carries` data chosen by the client.
    pub(in crate::proxy) fn set_offer(&mut self, server: &str, carries: bool) {
        let exposure = self.worker.proxy.catalog.exposure_of_offers(server);
        self.offer = OfferExposure { exposure, carries };
    }

    /// Releases a repeated request that no longer needs an approval; it is sent unchanged.
    fn release(
        &mut self,
        repeated: Option<&RepeatedRequest>,
        access: &Access,
        extras: &mut CallExtras,
    ) -> Result<(), Refusal> {
        let Some(RepeatedRequest { id, .. }) = repeated else { return Ok(()) };
        let released = self.worker.proxy.approvals.release(id);
        extras.members =
            released.map_err(|why| self.record.deny(&ApprovalDenial::new(access, why).into()))?;
        Ok(())
    }

    fn decide(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        now: SystemTime,
    ) -> Admission {
        policy::admit(self.request(access, arguments, intent, now), &self.settings.policy)
    }

    /// Admission decision without recording it.
    pub(in crate::proxy) fn forecast(
        &self,
        access: Access,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
    ) -> Forecast {
        let request = self.request(access, arguments, intent, self.record.time_of_day());
        policy::forecast(&request, &self.settings.policy)
    }

    /// Makes the request's `inputResponses` part of its decision and record. In a repeated request, they answer the
    /// proxy's own question; the server gets those of the first request.
    fn keep_inputs(&mut self, repeated: Option<&RepeatedRequest>, members: &Bytes) {
        let sent = match repeated {
            Some(repeated) => self.worker.proxy.approvals.first_members(&repeated.id),
            None => members.clone(),
        };
        self.inputs = approval::input_responses(&sent);
        if !self.inputs.is_empty() {
            self.record.keep_member(INPUTS, &self.inputs);
        }
    }

    fn request<'r>(
        &'r self,
        access: Access,
        arguments: &'r [u8],
        intent: Option<Intent<'r>>,
        now: SystemTime,
    ) -> AdmissionRequest<'r> {
        AdmissionRequest {
            principal: &self.caller.principal,
            access,
            arguments,
            meta: self.meta.as_bytes(),
            inputs: self.inputs.as_bytes(),
            intent,
            client: self.caller.client_name(),
            session: self.facts.now(),
            carries_out: (self.offer.carries || !self.inputs.is_empty())
                && self.offer.exposure.world == World::Open,
            now,
        }
    }

    /// Waits for approval and asks for admission again, since tool, rules and principal may have changed. Only the
    /// approved request is sent.
    async fn approved(
        &mut self,
        pending: PendingApproval,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        extras: &mut CallExtras,
        repeated: Option<RepeatedRequest>,
    ) -> Result<Permit, Stopped> {
        let access = pending.access().clone();
        let reason = intent.and_then(|intent| intent.reason()).unwrap_or_default();
        let call =
            WaitingCall { arguments, meta: &self.meta, inputs: &self.inputs, reason, extras };
        let (worker, caller) = (self.worker, self.caller);
        let approved = match repeated {
            None => approval::wait(worker, caller, self.record, pending, call).await?,
            Some(repeated) => {
                let (approved, first) =
                    approval::claim(worker, caller, self.record, pending, repeated, call).await?;
                extras.members = first;
                approved
            }
        };
        if approved.is_for_one_call() {
            // Only data that was displayed for approval is sent; the client's trace was not displayed.
            self.record.restart_trace(&worker.trace_ids);
            let meta = extras.meta.as_deref().and_then(meta::without_trace);
            extras.meta = meta.map(Bytes::from);
        }
        self.still_there()?;
        // The approval may have taken a long time.
        self.settings = self.worker.settings();
        let changed = Denial::from(ApprovalDenial::new(&access, NotApproved::Changed));
        let Some(now) = self.as_it_is(access, intent) else {
            return Err(self.record.deny(&changed).into());
        };
        let decided = match self.decide(now, arguments, intent, SystemTime::now()) {
            // The request no longer needs an approval.
            Admission::Permit(permit) => Ok(LimitDecision::Permit(permit)),
            Admission::Queued(queued) => Ok(LimitDecision::Queued(queued)),
            Admission::Pending(pending) => pending.permitted_by(&approved, &self.settings.policy),
            Admission::Denial(denial) => Err(denial),
        };
        match decided {
            Ok(LimitDecision::Permit(permit)) => Ok(permit),
            Ok(LimitDecision::Queued(queued)) => {
                match self.wait_in_queue(queued, arguments, intent, Some(&approved)).await? {
                    QueueOutcome::Permit(permit) => Ok(permit),
                    // A different request was approved.
                    QueueOutcome::Asks(_) => Err(self.record.deny(&changed).into()),
                }
            }
            Err(denial) => Err(self.record.deny(&denial).into()),
        }
    }

    /// Updates the access to the tool's current definition; `None` if the tool no longer exists.
    fn as_it_is(&self, access: Access, intent: Option<Intent<'_>>) -> Option<Access> {
        Some(match access {
            Access::Tool(call) => {
                let tool = self.worker.proxy.catalog.load().tool(&call.tool().name).cloned()?;
                Access::Tool(match intent {
                    Some(intent) => ToolAccess::declared(tool, &intent),
                    None => ToolAccess::direct(tool),
                })
            }
            Access::Resource { .. }
            | Access::Prompt { .. }
            | Access::Completion { .. }
            | Access::Method { .. } => access,
            Access::Task(task) => {
                let catalog = self.worker.proxy.catalog.load();
                let tool = catalog.tool(&task.call().tool().name).cloned()?;
                Access::Task(task.of_tool(tool))
            }
        })
    }

    /// Checks after a wait that the principal is still valid.
    fn still_there(&mut self) -> Result<(), Refusal> {
        let principal = &self.caller.principal;
        match self.worker.proxy.identity.in_force(principal, SystemTime::now()) {
            true => Ok(()),
            false => Err(self.record.deny(&Denial::Lapsed { who: principal.id().into() })),
        }
    }

    /// Waits in the request's queue within its timeout and asks for admission again, since principal, tool and
    /// rules may have changed. A dropped request leaves its queue; one that is not sent returns its slot.
    async fn wait_in_queue(
        &mut self,
        mut queued: Box<Queued>,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        approved: Option<&Approved>,
    ) -> Result<QueueOutcome, Refusal> {
        let asked = clock::now();
        let upstream = self.worker.proxy.upstreams.get(queued.access().server());
        let time = upstream.map_or(Duration::ZERO, |upstream| upstream.call_timeout());
        let until = self.record.began() + time;
        self.record.found(&self.worker.proxy.upstreams);
        let acquiring = tokio::time::timeout_at(until.into(), queued.acquire());
        let acquired = self.worker.ending.unless_cut(pin!(acquiring)).await;
        let waited = clock::now().saturating_duration_since(asked);
        self.record.waited(waited);
        let permit = match acquired {
            Some(Ok(Ok(permit))) => permit,
            Some(Ok(Err(denial))) => return Err(self.record.deny(&denial)),
            Some(Err(_)) => return Err(self.record.deny(&queued.late(waited))),
            None => {
                let access = queued.access();
                return Err(Refusal::cut_off(access.server(), access.label()));
            }
        };
        self.admit_again(permit, arguments, intent, approved, waited)
    }

    /// Checks a permitted request again after its arguments were coerced, and waits for a required approval.
    async fn admit_coerced(
        &mut self,
        permit: Permit,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        extras: &mut CallExtras,
    ) -> Result<Permit, Stopped> {
        match self.admit_again(permit, arguments, intent, None, Duration::ZERO)? {
            QueueOutcome::Permit(permit) => Ok(permit),
            QueueOutcome::Asks(pending) => {
                self.approved(pending, arguments, intent, extras, None).await
            }
        }
    }

    /// Checks a permitted request again, which keeps its slots. This is necessary after a wait of `waited`, since
    /// principal, tool and rules may have changed, and after coercion, since the arguments have changed.
    fn admit_again(
        &mut self,
        permit: Permit,
        arguments: &[u8],
        intent: Option<Intent<'_>>,
        approved: Option<&Approved>,
        waited: Duration,
    ) -> Result<QueueOutcome, Refusal> {
        self.still_there()?;
        let access = permit.access().clone();
        let Some(access) = self.as_it_is(access, intent) else {
            let text = format!("Tool '{}' not found", permit.access());
            let refusal = Refusal::failed(RefusalKind::Unknown, text).advising(FIND_TOOLS);
            return Err(refusal);
        };
        let settings = self.worker.settings();
        let request = self.request(access, arguments, intent, SystemTime::now());
        match policy::admit_again(request, permit, approved, &settings.policy) {
            Admission::Permit(permit) => Ok(QueueOutcome::Permit(permit)),
            Admission::Pending(pending) => Ok(QueueOutcome::Asks(pending)),
            Admission::Denial(denial) => Err(self.record.deny(&denial)),
            // The request has already waited and is not queued again.
            Admission::Queued(queued) => Err(self.record.deny(&queued.late(waited))),
        }
    }
}

/// Corrected call that the capability gate would permit; empty if there is none, or if the tool is not `shown` to
/// the caller.
fn help(
    denial: &Denial,
    arguments: &[u8],
    intent: Option<Intent<'_>>,
    shown: impl Fn(&ToolName) -> bool,
) -> String {
    match (denial, intent) {
        (Denial::Gate(Mismatch { tool, needed, by: _ }), Some(intent)) if shown(tool) => {
            let intent = intent.stating(*needed);
            advice::call_again(*needed, &tool.to_string(), arguments, &intent)
        }
        (Denial::Unannotated(tool), Some(intent)) if shown(tool) => {
            let intent = intent.stating(Operation::Write);
            advice::call_again(Operation::Write, &tool.to_string(), arguments, &intent)
        }
        (
            Denial::Gate(_)
            | Denial::Unannotated(_)
            | Denial::Intent(_)
            | Denial::Approval(_)
            | Denial::Scope { .. }
            | Denial::Lapsed { .. }
            | Denial::Quarantined(_)
            | Denial::Rule(_)
            | Denial::Limit(_),
            _,
        ) => String::new(),
    }
}
