//! What a slot's reservation covers: one call of what was declared, and a call that is out when its
//! job ends.

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use nucleo_runtime::llm::{
    CallOptions, Conversation, LlmClient, LlmResponse, ScriptedClient, StreamChunk, Usage,
};
use nucleo_runtime::models::{Cost, Currency, Depth, Grade, ModelSpec, OutputSize};
use nucleo_runtime::observe::CostLedger;
use nucleo_runtime::testing::{Fault, FaultyProvider, quiesce};
use nucleo_runtime::{
    ErrorKind, JobError, JobHandle, JobRequirements, JobResources, RetrySignal, job_fn,
};

use crate::support::{ANSWER, Run, catalog, priced, question};

/// What `needs` reserves: ten tokens in, 1 024 out.
const RESERVED: u128 = 10 * 1_000 + 1_024 * 10_000;

fn needs() -> JobRequirements {
    JobRequirements::none().model(
        ANSWER,
        Grade::Small,
        Depth::Immediate,
        10,
        OutputSize::Verdict,
    )
}

fn dollars(billionths: u128) -> Cost {
    Cost::from_billionths(billionths, Currency::USD)
}

/// Answers once it is let go.
struct Held {
    begun: Mutex<mpsc::Sender<()>>,
    go: Mutex<mpsc::Receiver<()>>,
}

impl Held {
    fn new() -> (Arc<Self>, mpsc::Receiver<()>, mpsc::Sender<()>) {
        let (begun, has_begun) = mpsc::channel();
        let (go, goes) = mpsc::channel();
        let held = Self {
            begun: Mutex::new(begun),
            go: Mutex::new(goes),
        };
        (Arc::new(held), has_begun, go)
    }
}

impl LlmClient for Held {
    fn respond(
        &self,
        _: &ModelSpec,
        _: &Conversation,
        _: &CallOptions,
    ) -> Result<LlmResponse, JobError> {
        self.begun.lock().unwrap().send(()).unwrap();
        let _ = self.go.lock().unwrap().recv();
        Ok(LlmResponse::new("late", Usage::new(6, 1)))
    }
}

/// Lets both phases of a timeout of ten seconds pass.
fn leave_behind<T: Send + Sync + std::fmt::Debug + 'static>(run: &Run, handle: &JobHandle<T>) {
    run.clock.advance(Duration::from_secs(10));
    quiesce(&run.dispatcher);
    run.clock.advance(Duration::from_secs(1));
    assert!(handle.get().unwrap_err().is_timed_out());
}

#[test]
fn a_call_that_is_out_when_its_job_ends_is_charged_what_it_may_cost() {
    let (client, begun, go) = Held::new();
    let ledger = CostLedger::new();
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .client("acme", client)
            .spend_gate(ledger.clone())
    });
    let id = run.workflow.id();
    // Room for one call and no more.
    ledger.cap(id, dollars(RESERVED + 1));
    let (told, tells) = mpsc::channel();
    let job = job_fn(needs, move |resources, _| {
        let answer = resources.model(ANSWER)?.client().respond(&question());
        told.send(answer.is_ok()).unwrap();
        answer
    });
    let handle = run.submit(job.timeout(Some(Duration::from_secs(10))));
    begun.recv().unwrap();
    leave_behind(&run, &handle);
    assert_eq!(ledger.committed(id, Currency::USD), dollars(0));
    assert_eq!(ledger.spent(id, Currency::USD), dollars(RESERVED));
    let refused = run.ask(Grade::Small).get().unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::SpendCapExceeded { .. }));

    // What comes back late changes no book.
    go.send(()).unwrap();
    assert!(tells.recv().unwrap());
    assert_eq!(ledger.spent(id, Currency::USD), dollars(RESERVED));
    quiesce(&run.dispatcher);
    let events = run.told.events_of(handle.job_id());
    let calls: Vec<_> = events
        .iter()
        .flat_map(|event| event.model_calls().to_vec())
        .collect();
    assert_eq!(calls.len(), 1);
    assert!(calls[0].estimated && !calls[0].successful && calls[0].usage.is_none());
    assert_eq!(calls[0].cost, Some(dollars(RESERVED)));
    let report = ledger.report(id).unwrap();
    assert!(report.calls.len() == 1 && report.calls[0].estimated);
}

#[test]
fn a_slot_is_called_once_an_attempt() {
    let client = Arc::new(ScriptedClient::from_fn(|_| "42"));
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .client("acme", client.clone())
    });
    let error = run
        .submit(job_fn(needs, |resources, _| {
            for _ in 0..50 {
                resources.model(ANSWER)?.client().respond(&question())?;
            }
            Ok::<_, JobError>(())
        }))
        .get()
        .unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::IllegalState { .. }));
    assert!(error.to_string().contains("slot 'answer'"), "{error}");
    assert_eq!(client.calls(), 1);
}

#[test]
fn what_is_larger_than_was_declared_is_not_sent() {
    let client = Arc::new(ScriptedClient::from_fn(|_| "42"));
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .client("acme", client.clone())
    });
    let ask = |bytes: usize| {
        let job = job_fn(needs, move |resources: &JobResources, _| {
            let said = "x".repeat(bytes);
            resources
                .model(ANSWER)?
                .client()
                .respond(&Conversation::new().user(said))
        });
        run.submit(job).get()
    };
    ask(40).unwrap();
    // Eleven tokens: one is given for the rounding.
    ask(44).unwrap();
    let error = ask(400_000).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error.kind(), ErrorKind::IllegalState { .. }));
    assert!(
        text.contains("100000 tokens") && text.contains("reserved 10"),
        "{text}"
    );
    assert_eq!(client.calls(), 2);
}

#[test]
fn an_answer_that_breaks_off_is_charged_what_was_reserved() {
    let ledger = CostLedger::new();
    let provider =
        FaultyProvider::new("acme", "a long answer").fails((0..9).map(|_| Fault::DiesMidStream));
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .provider(provider.clone())
            .spend_gate(ledger.clone())
    });
    let id = run.workflow.id();
    ledger.cap(id, dollars(RESERVED * 2));
    for _ in 0..9 {
        let job = job_fn(needs, |resources, _| {
            let client = resources.model(ANSWER)?.client();
            client.stream(&question(), |_| {})
        });
        run.submit(job).get().unwrap_err();
    }
    assert_eq!(provider.calls(), 2);
    assert_eq!(ledger.spent(id, Currency::USD), dollars(RESERVED * 2));
}

/// Delivers nothing and then fails.
struct Empty(Mutex<u32>);

impl LlmClient for Empty {
    fn respond(
        &self,
        _: &ModelSpec,
        _: &Conversation,
        _: &CallOptions,
    ) -> Result<LlmResponse, JobError> {
        Ok(LlmResponse::new("42", Usage::new(6, 1)))
    }

    fn stream(
        &self,
        model: &ModelSpec,
        conversation: &Conversation,
        options: &CallOptions,
        deliver: &mut dyn FnMut(StreamChunk),
    ) -> Result<LlmResponse, JobError> {
        let calls = {
            let mut calls = self.0.lock().unwrap();
            *calls += 1;
            *calls
        };
        deliver(StreamChunk::new("", false));
        if calls == 1 {
            return Err(RetrySignal::transient("acme", "reset").into());
        }
        self.respond(model, conversation, options)
    }
}

#[test]
fn an_empty_piece_is_nothing_that_was_delivered() {
    let run = Run::new(|builder| {
        builder
            .catalog(catalog([priced("m", "acme", Grade::Small)]))
            .client("acme", Arc::new(Empty(Mutex::new(0))))
    });
    let handle = run.submit(job_fn(needs, |resources, _| {
        let client = resources.model(ANSWER)?.client();
        client
            .stream(&question(), |_| {})
            .map(|answer| answer.text().to_owned())
    }));
    run.pass_retry(&mut 0);
    assert_eq!(*handle.get().unwrap(), "42");
}
