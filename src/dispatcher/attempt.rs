//! One attempt, in order (`ATT-3` to `ATT-9`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::asking::asking;
use super::entry::Entry;
use super::inner::Inner;
use super::models::ResolvedModel;
use super::orchestrator::OrchestratorContext;
use super::rerun::Execution;
use super::timer::AlarmKey;
use super::{door, governor, rerun, settle};
use crate::admission::{Demand, Grant};
use crate::error::JobError;
use crate::events::{Event, EventKind, JobStarted, LifecycleEvent};
use crate::job::core::{JobCore, Outcome};
use crate::job::requirements::LimitNeed;
use crate::job::resources::ResourceSet;
use crate::job::{JobContext, JobRequirements, JobResources, current};
use crate::unwind::{contain, contain_result, discard};

use super::body::Body;

/// A job's thread, from its start to the settlement.
pub(super) fn run(inner: &Arc<Inner>, entry: &Arc<Entry>) {
    let Some(mut body) = entry.take_body() else {
        // Cancelled on its way here, and settled by whoever cancelled it.
        return;
    };
    let _entered = current::enter(entry.job(), true);
    let _governed = governor::enter(inner);
    // What the parts below contain themselves they tell better. This is for the rest, such as the
    // destructor of something that an error carries: no panic leaves a job unsettled.
    let outcome = contain_result("job", || rerun::run(inner, entry, &mut *body));
    end(inner, entry, body, outcome);
}

#[inline(never)]
fn end(inner: &Arc<Inner>, entry: &Arc<Entry>, body: Box<dyn Body>, outcome: Outcome) {
    if let Err(failure) = contain("job", || settle::finish(inner, entry, body, outcome)) {
        settle::finish_without_hooks(inner, entry, failure);
    }
    inner.thread_ends(entry);
}

/// One attempt: everything is declared, priced, admitted, used and given back.
pub(super) fn attempt(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    body: &mut dyn Body,
    execution: &mut Execution,
) -> Outcome {
    let job = entry.job();
    let context = JobContext::new(Arc::clone(job));
    execution.models.clear();
    let requirements = ask_what_it_needs(inner, entry, body)?;
    let result = admit(inner, entry, &context, &requirements, execution).and_then(|admitted| {
        hold(
            inner,
            entry,
            &context,
            &requirements,
            body,
            admitted,
            execution.attempt,
        )
    });
    requirements.discard();
    result
}

// The steps of an attempt are not to be inlined into one another: whoever waits in admission, which
// may be ten thousand, is to keep the stack of that step alone.

#[inline(never)]
fn ask_what_it_needs(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    body: &mut dyn Body,
) -> Result<Box<JobRequirements>, JobError> {
    if body.may_hold() {
        asking(inner, entry, || {
            contain("job", || Box::new(body.requirements()))
        })?
    } else {
        Ok(Box::new(JobRequirements::none()))
    }
}

/// What an attempt was granted.
struct Admitted {
    resources: Arc<ResourceSet>,
    holds: bool,
}

/// Waits until everything is granted at once.
#[inline(never)]
fn admit(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    context: &JobContext,
    requirements: &JobRequirements,
    execution: &mut Execution,
) -> Result<Admitted, JobError> {
    let job = entry.job();
    let (demand, models) = price(inner, entry, requirements, execution)?;
    let holds = !demand.is_empty();

    let grant = inner
        .admission()
        .admit_shared(demand, context)
        .inspect_err(|refusal| {
            // That admission stops is a cancellation like any other: whoever asks what became of the
            // job finds it decided. An account that refuses with one of its own fails the job.
            if inner.admission().has_stopped_with(refusal) {
                settle::stop_by_shutdown(job);
            }
        })?;
    Ok(take_over(inner, job, grant, models, holds))
}

#[inline(never)]
fn take_over(
    inner: &Inner,
    job: &Arc<JobCore>,
    grant: Grant,
    models: Vec<ResolvedModel>,
    holds: bool,
) -> Admitted {
    job.note_waits(grant.wait(), grant.waits());
    let models = models
        .into_iter()
        .map(|model| model.access(inner.models(), job))
        .collect();
    Admitted {
        resources: ResourceSet::new(grant, models),
        holds,
    }
}

/// Everything that the attempt needs: its models chosen and priced, and its demand.
#[inline(never)]
fn price(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    requirements: &JobRequirements,
    execution: &mut Execution,
) -> Result<(Arc<Demand>, Vec<ResolvedModel>), JobError> {
    let job = entry.job();
    // What an attempt asks for may differ from what was asked at the door; the rules do not.
    door::judge_terms(job, requirements, || {
        contain("requirements", || requirements.summary()).unwrap_or_default()
    })?;
    let models = match requirements.models.as_slice() {
        [] => Vec::new(),
        // Pickers, envelopes, counters and spend gates are a user's own.
        needs => asking(inner, entry, || {
            inner
                .models()
                .resolve(inner.limiters(), job, needs, execution)
        })??,
    };
    let demand = contain("requirements", || assemble(inner, requirements, &models))?;
    Ok((Arc::new(demand), models))
}

/// From the grant until everything is given back.
#[inline(never)]
fn hold(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    context: &JobContext,
    requirements: &JobRequirements,
    body: &mut dyn Body,
    Admitted { resources, holds }: Admitted,
    number: u32,
) -> Outcome {
    let job = entry.job();
    entry.set_attempt(Some(Arc::clone(&resources)));
    // From here to the close the job holds; a panic of ours on the way gives it back all the same.
    let mut held = HeldAttempt {
        inner,
        entry,
        resources: &resources,
        alarm: inner.arm_timeout(entry),
        open: true,
    };
    job.set_holding(holds);
    let made = resources.materialize(
        &requirements.providers,
        requirements.read_only,
        job.deadline(),
    );
    if let Err(error) = made {
        held.open = false;
        held.leave();
        return Err(error);
    }
    if let Some(interruption) = job.interruption() {
        // Told to stop before anything was done with the grant, which is taken back whole.
        held.open = false;
        resources.undo();
        held.leave();
        return Err(interruption);
    }

    let outcome = work(
        inner,
        entry,
        context,
        requirements,
        &resources,
        body,
        number,
    );
    tell_limits(inner, requirements, &outcome);
    match (held.close(), outcome) {
        (Ok(()), outcome) => outcome,
        (Err(failure), Err(error)) => Err(error.with_attached(failure)),
        (Err(failure), Ok(value)) => {
            // The work is done and committed; what failed is giving back, and that is no reason
            // to take the result away.
            log::warn!("{}: {failure}", job.id());
            Ok(value)
        }
    }
}

/// What an attempt holds. Given back when it is closed, or dropped on the way of a panic.
struct HeldAttempt<'a> {
    inner: &'a Arc<Inner>,
    entry: &'a Arc<Entry>,
    resources: &'a ResourceSet,
    alarm: Option<AlarmKey>,
    open: bool,
}

impl HeldAttempt<'_> {
    /// Closes the resources, and only then disarms the timeout: a close that is stuck has to be
    /// ended as well.
    fn close(&mut self) -> Result<(), JobError> {
        self.open = false;
        let closed = self.resources.close();
        self.leave();
        closed
    }

    fn leave(&mut self) {
        if let Some(alarm) = self.alarm.take() {
            self.inner.disarm(alarm);
        }
        let job = self.entry.job();
        job.set_deadline(None);
        job.set_holding(false);
        self.entry.set_attempt(None);
    }
}

impl Drop for HeldAttempt<'_> {
    fn drop(&mut self) {
        if self.open
            && let Err(error) = self.close()
        {
            log::error!("{}: {error}", self.entry.job().id());
        }
    }
}

/// From the grant to the end of `execute`, committed or rolled back.
fn work(
    inner: &Arc<Inner>,
    entry: &Entry,
    context: &JobContext,
    requirements: &JobRequirements,
    set: &Arc<ResourceSet>,
    body: &mut dyn Body,
    number: u32,
) -> Outcome {
    let job = context.core();
    let resources = JobResources::new(Arc::clone(set));
    contain_result("job", || body.pre_execute(&resources, context))?;
    let at = inner.clock().wall();
    job.start(number, at);
    job.tell(EventKind::JobStarted, |snapshot| {
        Event::Lifecycle(LifecycleEvent::Started(JobStarted {
            snapshot,
            at,
            attempt: number,
        }))
    });
    let transaction = requirements.transaction && set.has_handles();
    if transaction && let Err(error) = set.begin_all() {
        // Some have begun.
        return conclude(entry, set, transaction, Err(error));
    }
    let orchestrator = OrchestratorContext::new(context.clone(), Arc::clone(inner));
    let result = contain_result("job", || body.execute(&resources, &orchestrator));
    conclude(entry, set, transaction, result)
}

/// Commits a success that nothing forestalled; rolls back everything else.
fn conclude(entry: &Entry, set: &ResourceSet, transaction: bool, result: Outcome) -> Outcome {
    let job = entry.job();
    let rolled_back = |error: JobError| {
        let failures = if transaction {
            set.rollback_all()
        } else {
            Vec::new()
        };
        failures.into_iter().fold(error, JobError::with_attached)
    };
    match result {
        // To be run again: nothing is decided.
        Err(error) if error.retry_signal().is_some() && job.interruption().is_none() => {
            Err(rolled_back(error))
        }
        Err(error) => {
            // Whoever decided before this keeps its decision; the settlement tells.
            if job.begin_finishing().is_ok() {
                // From here on the job fails with this, also when its end is stuck.
                settle::decided(entry, &Err(error.clone()));
            }
            Err(rolled_back(error))
        }
        Ok(value) => match job.begin_finishing() {
            Ok(()) => {
                let committed = if transaction {
                    set.commit_all()
                } else {
                    Ok(())
                };
                let outcome = committed.map(|()| value);
                settle::decided(entry, &outcome);
                outcome
            }
            Err(_) => {
                discard(value);
                Err(rolled_back(settle::interrupted(job, None)))
            }
        },
    }
}

/// Everything the attempt needs, as one demand (DEM-2).
fn assemble(inner: &Inner, requirements: &JobRequirements, models: &[ResolvedModel]) -> Demand {
    let mut demand = Demand::new();
    for model in models {
        model.add_to(&mut demand);
    }
    let http = requirements.http
        || !models.is_empty()
        || requirements
            .limits
            .iter()
            .any(|need| need.requires_http_connection());
    if http {
        demand.add(inner.http(), ());
    }
    for need in &requirements.limits {
        need.add_to(&mut demand);
    }
    for provider in &requirements.providers {
        for gate in provider.gates(requirements.read_only) {
            demand.add(&gate, ());
        }
    }
    demand
}

/// ATT-8: what the user's own limits hear of the outcome, each once, while the permits are held.
fn tell_limits(inner: &Inner, requirements: &JobRequirements, outcome: &Outcome) {
    let failure = match outcome {
        Ok(_) => None,
        Err(error) if error.is_upstream_family() => error.upstream_failure(),
        Err(_) => return,
    };
    if requirements.limits.is_empty() {
        return;
    }
    let now = inner.clock().now();
    let mut told = SmallVec::<[*const (); 4]>::new();
    for need in &requirements.limits {
        if told.contains(&need.limiter()) {
            continue;
        }
        told.push(need.limiter());
        let told = contain("limiter", || tell_limit(&**need, failure.as_ref(), now));
        if let Err(error) = told {
            log::error!("a limiter failed to hear of an outcome: {error}");
        }
    }
}

fn tell_limit(
    need: &dyn LimitNeed,
    failure: Option<&crate::error::UpstreamFailure>,
    now: std::time::Instant,
) {
    match failure {
        None => need.on_success(now),
        Some(failure) => need.on_rate_limit_error(failure, now),
    }
}
