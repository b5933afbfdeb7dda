//! Where guards run (`GRD-3` to `GRD-5`, `SCP-5`).
//!
//! # Invariants
//!
//! 1. Whatever does not end in a pass fails the gated job: a refusal, an error, a panic, a timeout,
//!    a guard that the door turns away, the end of the dispatcher. Nothing runs, and nothing is
//!    delivered, unjudged.
//! 2. The gated job waits for its guards on its own thread and holds nothing: the input side comes
//!    before the first attempt, the output side after the last has given everything back.
//! 3. A guard's job is submitted by the runtime, under the guard that its gated job is bound to.
//!    It crosses the same walls as any other, but that nobody has to be an orchestrator for it.

use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

use super::asking::asking;
use super::body::Body;
use super::door::{self, Parent, SubmitError, Taken};
use super::entry::Entry;
use super::inner::Inner;
use super::orchestrator::OrchestratorContext;
use super::settle;
use super::submission::{Prepared, SubmissionTerms, summarized};
use crate::error::JobError;
use crate::guard::{
    AdmissionRequest, Attached, Content, Gate, GuardPhase, Guards, Protection, Subject,
    ValidationGuards,
};
use crate::job::core::{Decision, JobCore, Outcome};
use crate::job::description::Description;
use crate::job::identity::simple_name;
use crate::job::{
    DEFAULT_UPSTREAM_RETRIES, JobContext, JobHandle, JobRequirements, JobResources, JobSnapshot,
    JobState, JobType, Metadata, MetadataValue,
};
use crate::unwind::{catch, contain, contain_result, discard};

const INPUT_SIDE: [GuardPhase; 3] = [
    GuardPhase::Admission,
    GuardPhase::ContentInput,
    GuardPhase::Auth,
];
const OUTPUT_SIDE: [GuardPhase; 1] = [GuardPhase::ContentOutput];

/// Judges who asks for the job and with what, before it holds anything.
pub(super) fn judge_input(inner: &Arc<Inner>, entry: &Arc<Entry>) -> Result<(), JobError> {
    let protection = entry.protection();
    // Counted even when there are none: that nothing guarded the job is a fact too.
    entry.job().note_own(Metadata::GUARDS_INPUT, 0);
    if !protection.guards.has(&INPUT_SIDE) {
        return Ok(());
    }
    let content = match &protection.input {
        Some(input) => {
            let ask = || contain("input", || Content::input(Arc::clone(input)));
            Some(asking(inner, entry, ask)??)
        }
        None => None,
    };
    let round = Round {
        inner,
        entry,
        subject: subject(entry, content),
        counted: Metadata::GUARDS_INPUT,
        deadline: None,
    };
    round.judge(&protection.guards, &INPUT_SIDE)
}

/// Whether an output has to be judged before it is delivered.
pub(super) fn judges_output(entry: &Entry) -> bool {
    entry.protection().guards.has(&OUTPUT_SIDE)
}

/// Whether a job is a guard that judges an output. Only the runtime notes that.
pub(super) fn judges_an_output(job: &JobCore) -> bool {
    let phase = GuardPhase::ContentOutput.to_string();
    job.snapshot()
        .metadata()
        .get(Metadata::GATES_PHASE)
        .and_then(MetadataValue::as_text)
        == Some(&*phase)
}

/// Notes the verdict of a guard that ends: what its end says, also of one that never came to judge or was left
/// behind (GRD-3). Nothing for any other job.
pub(super) fn note_verdict(job: &JobCore, end: JobState) {
    if job.is_noted(Metadata::GATES_PHASE) {
        let passed = end == JobState::Completed;
        job.note_own(
            Metadata::GUARD_VERDICT,
            if passed { "PASS" } else { "FAIL" },
        );
    }
}

/// What the job delivers: its output when every guard lets it pass until `deadline`.
pub(super) fn judge_output(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    body: &dyn Body,
    outcome: Outcome,
    deadline: Option<Instant>,
) -> Outcome {
    let output = outcome?;
    entry.job().note_own(Metadata::GUARDS_OUTPUT, 0);
    if !judges_output(entry) {
        return Ok(output);
    }
    match judge_value(inner, entry, body, &output, deadline) {
        Ok(()) => Ok(output),
        Err(refusal) => {
            discard(output);
            Err(refusal)
        }
    }
}

fn judge_value(
    inner: &Arc<Inner>,
    entry: &Arc<Entry>,
    body: &dyn Body,
    output: &Arc<dyn Any + Send + Sync>,
    deadline: Option<Instant>,
) -> Result<(), JobError> {
    let text = contain("output_text", || body.output_text(output))?;
    let content = Content::output(Arc::clone(output), text);
    let round = Round {
        inner,
        entry,
        subject: subject(entry, Some(content)),
        counted: Metadata::GUARDS_OUTPUT,
        deadline,
    };
    round.judge(&entry.protection().guards, &OUTPUT_SIDE)
}

/// Judges an answer that an orchestrator is about to give.
pub(super) fn validate(
    inner: &Arc<Inner>,
    job: &JobCore,
    guards: &ValidationGuards,
    answer: Arc<dyn Any + Send + Sync>,
    text: Option<String>,
) -> Result<(), JobError> {
    let Some(entry) = inner.entry(job.id()) else {
        return Err(JobError::illegal_state(format!(
            "{} has ended and has no more answers judged",
            job.id()
        )));
    };
    job.note_own(Metadata::GUARDS_VALIDATION, 0);
    let round = Round {
        inner,
        entry: &entry,
        subject: subject(&entry, Some(Content::answer(answer, text))),
        counted: Metadata::GUARDS_VALIDATION,
        deadline: None,
    };
    round.judge(guards.all(), &[GuardPhase::Validation])
}

fn subject(entry: &Entry, content: Option<Content>) -> Subject {
    let profile = entry.job().profile();
    Subject {
        request: AdmissionRequest::new(
            Arc::clone(&profile.ids.user),
            entry.caller(),
            profile.type_path,
        ),
        content,
    }
}

/// The guards of one side over one subject.
struct Round<'a> {
    inner: &'a Arc<Inner>,
    entry: &'a Arc<Entry>,
    subject: Subject,
    counted: &'static str,
    deadline: Option<Instant>,
}

impl Round<'_> {
    fn judge(&self, guards: &Guards, phases: &[GuardPhase]) -> Result<(), JobError> {
        let mut applied = 0;
        for attached in guards.of(phases) {
            if !attached.judge.applies(&self.subject) {
                continue;
            }
            applied += 1;
            self.entry.job().note_own(self.counted, applied);
            self.run(attached)?;
        }
        Ok(())
    }

    /// Runs one guard as a job of its own and waits for its verdict.
    fn run(&self, attached: &Attached) -> Result<(), JobError> {
        let gated = self.entry.job();
        let prepare = || prepare(attached, &self.subject, gated.snapshot());
        let prepared = match self.deadline {
            // The hooks' budget covers it.
            Some(_) => prepare(),
            None => asking(self.inner, self.entry, prepare)?,
        };
        let submitted = door::submit_guard(self.inner, self.terms(attached), prepared);
        let mut guard = None;
        let verdict = match submitted {
            Ok(Taken {
                refusal: Some(refusal),
                ..
            }) => Err(JobError::system(
                "guard",
                format!(
                    "{} was refused and has not judged: {refusal}",
                    called(attached)
                ),
            )
            .with_source(refusal)),
            Ok(Taken { job, .. }) => {
                guard = Some(Arc::clone(&job));
                self.wait(job)
            }
            Err(SubmitError::ShutDown) => Err(JobError::cancelled("the dispatcher shut down")),
            Err(error) => Err(error.into()),
        };
        // By what became of it: a guard may fail with a cancellation of somebody else's.
        let was_cancelled = guard.is_none_or(|guard| guard.decision() == Decision::Cancelled)
            && verdict.as_ref().is_err_and(JobError::is_cancelled);
        if was_cancelled && self.inner.is_stopping() {
            // The guard was cancelled because everything stops, and so is the job it gates.
            settle::stop_by_shutdown(gated);
        }
        verdict
    }

    fn terms(&self, attached: &Attached) -> SubmissionTerms {
        let gated = self.entry.job();
        let mut terms = SubmissionTerms::new(Parent::job(gated));
        let target = match attached.phase {
            GuardPhase::Admission => self.subject.request.to_string().into(),
            _ => self
                .subject
                .content
                .as_ref()
                .and_then(Content::text)
                .map_or_else(|| "(no text)".into(), Arc::clone),
        };
        let facts = &mut terms.metadata;
        facts.insert(Metadata::GUARD_TARGET, MetadataValue::Text(target));
        facts.insert(Metadata::GATES_JOB, gated.id());
        facts.insert(Metadata::GATES_PHASE, attached.phase.to_string());
        terms
    }

    fn wait(&self, guard: Arc<JobCore>) -> Result<(), JobError> {
        let handle = JobHandle::<()>::new(guard);
        let waited = match self.deadline {
            // The work is over: whoever says stop says it too late, and the verdict decides (ST-3).
            Some(deadline) => handle.get_regardless(deadline),
            None => handle.get().map(Some),
        };
        if !handle.is_settled() {
            // The gated job goes on without it: nobody needs the verdict any more.
            handle.cancel("the job that it gates no longer waits for it");
        }
        match waited? {
            Some(_) => Ok(()),
            None => Err(not_in_time()),
        }
    }
}

/// The output was not judged within what the end of a job may take.
pub(super) fn not_in_time() -> JobError {
    JobError::timed_out(Some(settle::HOOK_BUDGET))
}

/// Asks a guard for what it says of itself; a panic says what it was asked.
fn asked<T>(what: &str, ask: impl FnOnce() -> T) -> Result<T, JobError> {
    catch(ask).map_err(|text| JobError::system("guard", format!("its `{what}` panicked: {text}")))
}

/// What a guard is called that the door turned away, perhaps because it could not say what it is.
fn called(attached: &Attached) -> String {
    let guard = attached.judge.guard();
    let type_name = catch(|| simple_name(guard.type_path()).to_owned());
    type_name
        .or_else(|_| catch(|| guard.name().into_owned()))
        .unwrap_or_else(|_| format!("a guard of phase {}", attached.phase))
}

fn prepare(attached: &Attached, subject: &Subject, gated: JobSnapshot) -> Prepared {
    let guard = attached.judge.guard();
    let orchestrator = asked("spawns_judges", || guard.spawns_judges());
    let description = orchestrator.clone().and_then(|_| {
        let name = asked("name", || guard.name().into_owned())?;
        Ok(Description {
            type_path: asked("type_path", || guard.type_path())?,
            id_prefix: Some(name.clone()),
            name: None,
            display_name: Some(name),
            action: "judges".to_owned(),
            description: None,
            job_type: JobType::Guardrail,
            priority: 0,
            upstream_retries: DEFAULT_UPSTREAM_RETRIES,
            timeout: Some(asked("timeout", || guard.timeout())?),
            protection: Protection::new(None, asked("scope", || guard.scope())?, Guards::none()),
        })
    });
    let orchestrator = orchestrator.unwrap_or(false);
    let requirements = contain_result("guard", || {
        let requirements = guard.requirements();
        if orchestrator && requirements.declares_resources() {
            return Err(JobError::system(
                "guard",
                "a guard that spawns judges waits for them and may hold nothing: have the judges \
                 declare what they need",
            ));
        }
        Ok(summarized(requirements))
    });
    Prepared {
        orchestrator,
        description,
        requirements,
        body: Box::new(GuardBody {
            attached: attached.clone(),
            subject: subject.clone(),
            gated,
        }),
    }
}

/// A judgment.
struct GuardBody {
    attached: Attached,
    subject: Subject,
    gated: JobSnapshot,
}

impl Body for GuardBody {
    fn requirements(&self) -> JobRequirements {
        self.attached.judge.guard().requirements()
    }

    fn pre_execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }

    fn execute(&mut self, resources: &JobResources, context: &OrchestratorContext) -> Outcome {
        let gate = Gate::new(self.attached.phase, &self.gated, resources, context.job());
        // A verdict that comes after the guard was told to stop is none.
        contain_result("guard", || self.attached.judge.judge(&self.subject, &gate))
            .and_then(|()| context.check_cancellation())
            .map(|()| Arc::new(()) as Arc<dyn Any + Send + Sync>)
    }

    fn output_text(&self, _: &Arc<dyn Any + Send + Sync>) -> Option<String> {
        None
    }

    fn post_execute(&mut self, _: &Outcome, _: &JobContext) {}
}
