//! What workflows spend, end to end: the books are closed before anybody hears of an end, and a cap
//! is never passed.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::events::{Event, ModelCall};
use nucleo_runtime::llm::ScriptedClient;
use nucleo_runtime::models::{Cost, Currency, Depth, Grade, OutputSize, PricedAttempt, SpendGate};
use nucleo_runtime::observe::CostLedger;
use nucleo_runtime::testing::{Fault, FaultyProvider};
use nucleo_runtime::{ErrorKind, JobError, JobRequirements, JobSnapshot, doer_fn, job_fn};

use crate::support::{ANSWER, Run, asks, catalog, priced, question, quota};

const USD: Currency = Currency::USD;

fn money(text: &str) -> Cost {
    text.parse().unwrap()
}

/// A run whose one provider answers everything, and its books.
fn books(provider: &FaultyProvider) -> (Run, Arc<CostLedger>) {
    let ledger = CostLedger::new();
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .provider(provider.clone())
            .spend_gate(ledger.clone())
    });
    (run, ledger)
}

/// What `asks` reserves: ten tokens in, 1 024 out.
const RESERVED: u128 = 10 * 1_000 + 1_024 * 10_000;
/// What its call uses: the question is 6 tokens and the answer 1.
const USED: u128 = 6 * 1_000 + 10_000;

fn billionths(amount: u128) -> Cost {
    Cost::from_billionths(amount, USD)
}

#[test]
fn a_caller_back_from_get_sees_the_books_closed_on_every_path() {
    let provider = FaultyProvider::new("acme", "42");
    let (run, ledger) = books(&provider);
    let id = run.workflow.id().to_owned();
    let closed = |calls: u128| {
        assert_eq!(ledger.committed(&id, USD), money("0 USD"));
        assert_eq!(ledger.spent(&id, USD), billionths(calls * USED));
    };
    for n in 1..=50 {
        run.ask(Grade::Small).get().unwrap();
        closed(n);
    }
    // Refused by the provider: nothing was used.
    let provider = provider.fails([Fault::Unauthorized, Fault::Refusal]);
    run.ask(Grade::Small).get().unwrap_err();
    run.ask(Grade::Small).get().unwrap_err();
    closed(50);
    // Called, and then failed by the job itself, or by its panic.
    for panics in [false, true] {
        let job = job_fn(needs, move |resources, _| -> Result<(), JobError> {
            resources.model(ANSWER)?.client().respond(&question())?;
            assert!(!panics, "on purpose");
            Err(JobError::correctable("no use"))
        });
        run.submit(job).get().unwrap_err();
    }
    closed(52);
    // Cancelled while it runs.
    let (ready, is_ready) = mpsc::channel();
    let job = job_fn(needs, move |resources, context| -> Result<(), JobError> {
        resources.model(ANSWER)?.client().respond(&question())?;
        ready.send(()).unwrap();
        context.sleep(std::time::Duration::from_secs(3_600))
    });
    let handle = run.submit(job);
    is_ready.recv().unwrap();
    assert_eq!(ledger.committed(&id, USD), billionths(RESERVED));
    handle.cancel("not needed");
    handle.get().unwrap_err();
    closed(53);
    assert_eq!(provider.calls(), 55);
}

#[test]
fn a_job_that_is_left_behind_commits_nothing_any_more() {
    let (run, ledger) = books(&FaultyProvider::new("acme", "42"));
    let (ready, is_ready) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let job = job_fn(needs, move |resources, _| -> Result<(), JobError> {
        resources.model(ANSWER)?.client().respond(&question())?;
        ready.send(()).unwrap();
        // Looks at nothing, and so ignores both phases of its timeout.
        let _ = goes.recv();
        Ok(())
    });
    let handle = run.submit(job.timeout(Some(Duration::from_secs(10))));
    is_ready.recv().unwrap();
    run.clock.advance(Duration::from_secs(10));
    nucleo_runtime::testing::quiesce(&run.dispatcher);
    run.clock.advance(Duration::from_secs(1));
    assert!(handle.get().unwrap_err().is_timed_out());
    let id = run.workflow.id();
    assert_eq!(ledger.committed(id, USD), money("0 USD"));
    assert_eq!(ledger.spent(id, USD), billionths(USED));
    go.send(()).unwrap();
}

fn needs() -> JobRequirements {
    JobRequirements::none().model(
        ANSWER,
        Grade::Small,
        Depth::Immediate,
        10,
        OutputSize::Verdict,
    )
}

#[test]
fn a_job_that_admission_refuses_commits_nothing() {
    let ledger = CostLedger::new();
    // Less than one call reserves, so that no attempt is ever admitted.
    let mut small = priced("m", "acme", Grade::Small);
    small.bound = quota(500, 10);
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([small]))
            .provider(FaultyProvider::new("acme", "42"))
            .spend_gate(ledger.clone())
    });
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(
        error.to_string().contains("exceeds the 500 per minute"),
        "{error}"
    );
    assert_eq!(ledger.committed(run.workflow.id(), USD), money("0 USD"));
}

/// Judges as the ledger does, and keeps the most that was ever spent and committed together.
#[derive(Debug)]
struct Watched {
    ledger: Arc<CostLedger>,
    most: Mutex<u128>,
}

impl Watched {
    fn look(&self, workflow: &str) {
        let report = self.ledger.report(workflow).unwrap_or_default();
        let sum = |costs: &[Cost]| costs.iter().map(Cost::billionths).sum::<u128>();
        let now = sum(&report.spent) + sum(&report.committed);
        let mut most = self.most.lock().unwrap();
        *most = now.max(*most);
    }
}

impl SpendGate for Watched {
    fn judge(&self, attempt: &PricedAttempt<'_>) -> Result<(), JobError> {
        let verdict = self.ledger.judge(attempt);
        self.look(attempt.job.workflow_id());
        verdict
    }

    fn settle(&self, job: &JobSnapshot, calls: &[ModelCall]) {
        self.ledger.settle(job, calls);
        self.look(job.workflow_id());
    }
}

// case COST-15
// case F35
#[test]
fn a_fan_out_of_a_thousand_under_a_cap_never_commits_past_it() {
    let ledger = CostLedger::new();
    let watched = Arc::new(Watched {
        ledger: Arc::clone(&ledger),
        most: Mutex::default(),
    });
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .provider(FaultyProvider::new("acme", "42"))
            .spend_gate(watched.clone())
    });
    let cap = 20 * RESERVED;
    ledger.cap(run.workflow.id(), billionths(cap));
    let fan_out = doer_fn(|context| {
        let jobs = (0..1_000)
            .map(|_| context.submit_in_current_step(asks(Grade::Small)))
            .collect::<Result<Vec<_>, _>>()?;
        let mut refused = 0;
        for job in &jobs {
            if let Err(error) = job.get() {
                assert!(
                    matches!(error.kind(), ErrorKind::SpendCapExceeded { .. }),
                    "{error}"
                );
                refused += 1;
            }
        }
        Ok(refused)
    });
    let refused = *run
        .dispatcher
        .submit(&run.workflow, fan_out)
        .unwrap()
        .get()
        .unwrap();
    let most = *watched.most.lock().unwrap();
    assert!(most <= cap, "{most} of {cap}");
    let report = ledger.report(run.workflow.id()).unwrap();
    let ran = report.calls.len();
    assert_eq!(ran + refused, 1_000);
    assert!(ran >= 20, "{ran}");
    assert_eq!(
        ledger.spent(run.workflow.id(), USD),
        billionths(ran as u128 * USED)
    );
    assert_eq!(ledger.committed(run.workflow.id(), USD), money("0 USD"));
}

#[test]
fn a_refused_job_calls_nobody_and_what_runs_is_not_touched() {
    let (called, calls) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let goes = Mutex::new(goes);
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let client = ScriptedClient::from_fn(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        called.send(()).unwrap();
        goes.lock().unwrap().recv().unwrap();
        "42"
    });
    let ledger = CostLedger::new();
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .client("acme", Arc::new(client))
            .spend_gate(ledger.clone())
    });
    ledger.cap(run.workflow.id(), billionths(RESERVED));
    let first = run.ask(Grade::Small);
    calls.recv().unwrap();
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SpendCapExceeded { .. }));
    assert!(!error.is_correctable() && error.source().is_none());
    go.send(()).unwrap();
    assert_eq!(*first.get().unwrap(), "m: 42");
    assert_eq!(count.load(Ordering::SeqCst), 1);
}

#[test]
fn a_cut_off_answer_is_paid_for_and_its_larger_successor_is_reserved() {
    let provider = FaultyProvider::new("acme", "42").fails([Fault::Truncation]);
    let (run, ledger) = books(&provider);
    let handle = run.ask(Grade::Small);
    handle.get().unwrap();
    let report = ledger.report(run.workflow.id()).unwrap();
    let [cut_off, whole] = &report.calls[..] else {
        panic!("{report:?}");
    };
    assert!(!cut_off.successful && whole.successful);
    assert_eq!(cut_off.cost, Some(billionths(6 * 1_000 + 1_024 * 10_000)));
    assert_eq!(
        ledger.spent(run.workflow.id(), USD),
        billionths(6 * 1_000 + 1_024 * 10_000 + USED)
    );
}

#[derive(Debug)]
struct Panics;

impl SpendGate for Panics {
    fn judge(&self, attempt: &PricedAttempt<'_>) -> Result<(), JobError> {
        assert!(attempt.calls.is_empty() && attempt.models.len() == 1);
        panic!("no books");
    }

    fn settle(&self, _: &JobSnapshot, _: &[ModelCall]) {
        panic!("no books");
    }
}

#[test]
fn a_gate_that_panics_refuses_and_the_job_ends_all_the_same() {
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .provider(FaultyProvider::new("acme", "42"))
            .spend_gate(Arc::new(Panics))
    });
    let error = run.ask(Grade::Small).get().unwrap_err();
    assert!(error.to_string().contains("no books"), "{error}");
    // One that asks for no model is not judged.
    let plain = job_fn(JobRequirements::none, |_, _| Ok(7));
    assert_eq!(*run.submit(plain).get().unwrap(), 7);
}

#[test]
fn a_subscribed_ledger_reports_without_being_a_gate() {
    let ledger = CostLedger::new();
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .provider(FaultyProvider::new("acme", "42"))
    });
    let filter = nucleo_runtime::events::EventFilter::all();
    let _subscription = run.dispatcher.subscribe(filter, ledger.clone()).unwrap();
    let handle = run.ask(Grade::Small);
    handle.get().unwrap();
    nucleo_runtime::testing::quiesce(&run.dispatcher);
    assert_eq!(ledger.spent(run.workflow.id(), USD), billionths(USED));
    let report = ledger.report(run.workflow.id()).unwrap();
    assert_eq!(&*report.calls[0].job, handle.job_id());
    let told = run.told.events_of(handle.job_id());
    let terminal = told.iter().find(|event: &&Arc<Event>| event.is_terminal());
    assert_eq!(
        terminal.unwrap().model_calls()[0].cost,
        Some(billionths(USED))
    );
    assert_eq!(run.retries().len(), 0);
}
