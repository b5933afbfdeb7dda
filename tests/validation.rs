//! Answers that are judged while they can still be corrected.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nucleo_runtime::events::EventFilter;
use nucleo_runtime::guard::{
    Gate, Guard, GuardPhase, Scope, TenantScope, ValidationGuard, ValidationGuards,
};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    Doer, ErrorKind, JobDispatcher, JobError, JobRequirements, JobSnapshot, JobState, JobType,
    Metadata, MetadataValue, OrchestratorContext, Workflow, doer_fn, governor, job_fn,
};

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("alice", "test").unwrap())
}

fn stop(dispatcher: &JobDispatcher) {
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

fn applied(snapshot: &JobSnapshot) -> Option<i64> {
    snapshot
        .metadata()
        .get(Metadata::GUARDS_VALIDATION)
        .and_then(MetadataValue::as_integer)
}

fn is_refusal(error: &JobError) -> bool {
    matches!(error.kind(), ErrorKind::Guardrail { .. })
}

type Judgment = Arc<dyn Fn(&str) -> Result<(), JobError> + Send + Sync>;

#[derive(Clone)]
struct Judging {
    judgment: Judgment,
    runs: Arc<AtomicUsize>,
    scope: Option<Arc<dyn Scope>>,
    judges: bool,
}

fn judging(judgment: impl Fn(&str) -> Result<(), JobError> + Send + Sync + 'static) -> Judging {
    Judging {
        judgment: Arc::new(judgment),
        runs: Arc::default(),
        scope: None,
        judges: false,
    }
}

fn wants(word: &'static str) -> Judging {
    judging(move |answer| {
        if answer.contains(word) {
            return Ok(());
        }
        Err(JobError::guardrail(format!("say {word}")))
    })
}

impl Guard for Judging {
    fn scope(&self) -> Option<Arc<dyn Scope>> {
        self.scope.clone()
    }

    fn spawns_judges(&self) -> bool {
        self.judges
    }
}

impl ValidationGuard for Judging {
    type Target = str;

    fn judge(&self, answer: &str, gate: &Gate<'_>) -> Result<(), JobError> {
        assert_eq!(gate.phase(), Some(GuardPhase::Validation));
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.judgment)(answer)
    }
}

/// An agent with a script of answers. Each refusal costs it one.
struct Agent {
    guards: ValidationGuards,
    answers: Vec<&'static str>,
    turns: Arc<AtomicUsize>,
    corrections: Arc<Mutex<Vec<String>>>,
}

fn agent(guards: ValidationGuards, answers: &[&'static str]) -> Agent {
    Agent {
        guards,
        answers: answers.to_vec(),
        turns: Arc::default(),
        corrections: Arc::default(),
    }
}

impl Doer for Agent {
    type Output = String;

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        TenantScope::claim("acme")
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<String, JobError> {
        for answer in &self.answers {
            self.turns.fetch_add(1, Ordering::SeqCst);
            let answer = Arc::new((*answer).to_owned());
            match context.validate(&self.guards, &answer, None) {
                Ok(()) => return Ok((*answer).clone()),
                Err(refusal) if is_refusal(&refusal) => {
                    self.corrections.lock().unwrap().push(refusal.llm_message());
                }
                Err(broken) => return Err(broken),
            }
        }
        Err(JobError::uncorrectable("no answer passed"))
    }
}

#[test]
fn a_refused_answer_is_corrected_and_never_seen() {
    let (dispatcher, workflow) = started();
    let recorder = EventRecorder::new();
    let _all = dispatcher
        .subscribe(EventFilter::all(), recorder.clone())
        .unwrap();
    let guard = wants("please");
    let agent = agent(
        ValidationGuards::none().with(guard.clone()),
        &["no", "yes, please"],
    );
    let (turns, corrections) = (Arc::clone(&agent.turns), Arc::clone(&agent.corrections));
    let handle = dispatcher.submit(&workflow, agent).unwrap();
    assert_eq!(*handle.get().unwrap(), "yes, please");
    assert_eq!(turns.load(Ordering::SeqCst), 2);
    assert_eq!(guard.runs.load(Ordering::SeqCst), 2);
    assert_eq!(applied(&handle.snapshot()), Some(1));
    assert_eq!(
        *corrections.lock().unwrap(),
        ["Guardrail violation: say please"]
    );

    quiesce(&dispatcher);
    let mut judged = Vec::new();
    for event in recorder.events() {
        let Some(guard) = event.snapshot() else {
            continue;
        };
        if guard.job_type() == JobType::Guardrail && guard.state().is_terminal() {
            assert_eq!(guard.parent_id(), Some(handle.job_id()));
            let fact = |key| guard.metadata().get(key).unwrap().to_string();
            judged.push([
                fact(Metadata::GATES_PHASE),
                fact(Metadata::GUARD_TARGET),
                fact(Metadata::GUARD_VERDICT),
            ]);
        }
    }
    assert_eq!(
        judged,
        [
            ["VALIDATION", "no", "FAIL"],
            ["VALIDATION", "yes, please", "PASS"]
        ]
    );
    stop(&dispatcher);
}

#[test]
fn no_guard_at_all_is_a_fact_and_the_first_refusal_ends_a_round() {
    let (dispatcher, workflow) = started();
    let handle = dispatcher
        .submit(&workflow, agent(ValidationGuards::none(), &["anything"]))
        .unwrap();
    handle.get().unwrap();
    assert_eq!(applied(&handle.snapshot()), Some(0));

    let (first, second, third) = (wants("a"), wants("b"), wants("c"));
    let guards = ValidationGuards::none()
        .with(first.clone())
        .with(second.clone())
        .with(third.clone());
    let handle = dispatcher
        .submit(&workflow, agent(guards, &["a only"]))
        .unwrap();
    assert!(!is_refusal(&handle.get().unwrap_err()));
    assert_eq!(applied(&handle.snapshot()), Some(2));
    let runs = [first, second, third].map(|guard| guard.runs.load(Ordering::SeqCst));
    assert_eq!(runs, [1, 1, 0]);
    // A job that had nothing judged says nothing about it.
    let silent = dispatcher.submit(&workflow, doer_fn(|_| Ok(()))).unwrap();
    silent.get().unwrap();
    assert_eq!(applied(&silent.snapshot()), None);
    stop(&dispatcher);
}

#[test]
fn a_guard_that_breaks_or_is_out_of_scope_is_no_refusal_and_costs_one_turn() {
    let (dispatcher, workflow) = started();
    let breaking = judging(|_| panic!("the judge fell over"));
    let drifting = Judging {
        scope: TenantScope::claim("globex"),
        ..wants("anything")
    };
    for (guard, runs, says) in [
        (breaking, 1, "the judge fell over"),
        (drifting, 0, "was refused and has not judged"),
    ] {
        let guards = ValidationGuards::none().with(guard.clone());
        let agent = agent(guards, &["anything", "anything"]);
        let turns = Arc::clone(&agent.turns);
        let handle = dispatcher.submit(&workflow, agent).unwrap();
        let error = handle.get().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::System { .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(turns.load(Ordering::SeqCst), 1);
        assert_eq!(guard.runs.load(Ordering::SeqCst), runs);
        assert_eq!(handle.snapshot().state(), JobState::Failed);
    }
    stop(&dispatcher);
}

#[test]
fn a_guard_of_answers_may_spawn_judges_bound_as_the_flow() {
    let (dispatcher, workflow) = started();
    let spawning = Judging {
        judges: true,
        ..judging(|answer| {
            let length = answer.len();
            let judge = job_fn(JobRequirements::none, move |_, context| {
                assert_eq!(context.scope_guard().members().len(), 1);
                Ok(length)
            });
            let length = governor::submit(judge)?.get()?;
            if *length > 3 {
                return Err(JobError::guardrail("too long"));
            }
            Ok(())
        })
    };
    let guards = ValidationGuards::none().with(spawning);
    let handle = dispatcher
        .submit(&workflow, agent(guards, &["too long", "yes"]))
        .unwrap();
    assert_eq!(*handle.get().unwrap(), "yes");
    stop(&dispatcher);
}

#[test]
fn an_answer_is_judged_by_its_type_and_as_the_text_that_is_given() {
    struct Positive;

    impl Guard for Positive {}

    impl ValidationGuard for Positive {
        type Target = i64;

        fn judge(&self, answer: &i64, _: &Gate<'_>) -> Result<(), JobError> {
            if *answer > 0 {
                return Ok(());
            }
            Err(JobError::guardrail("must be positive"))
        }
    }

    let (dispatcher, workflow) = started();
    let judged = doer_fn(|context| {
        let typed = ValidationGuards::none().with(Positive);
        let texts = ValidationGuards::none().with(wants("4"));
        assert!(context.validate(&typed, &Arc::new(4_i64), None).is_ok());
        assert!(is_refusal(
            &context
                .validate(&typed, &Arc::new(-4_i64), None)
                .unwrap_err()
        ));
        // Of another type: nothing to judge.
        context.validate(&typed, &Arc::new("four"), None)?;
        assert_eq!(applied(&context.snapshot()), Some(0));
        let text = Some("4".to_owned());
        context.validate(&texts, &Arc::new(4_i64), text)?;
        let textless = context.validate(&texts, &Arc::new(4_i64), None);
        let error = textless.unwrap_err();
        assert!(error.to_string().contains("`validate`"), "{error}");
        assert!(!is_refusal(&error));
        Ok(())
    });
    dispatcher.submit(&workflow, judged).unwrap().get().unwrap();
    stop(&dispatcher);
}
