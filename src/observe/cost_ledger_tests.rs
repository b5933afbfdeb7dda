//! The books, without a dispatcher.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use super::CostLedger;
use crate::error::{ErrorKind, JobError};
use crate::events::sample::{at, sample_snapshot, scheduled, terminal};
use crate::events::{
    Event, JobCompleted, JobFailed, LifecycleEvent, ModelCall, Observer, TerminalInfo,
};
use crate::job::JobSnapshot;
use crate::models::{
    Cost, Currency, ModelBound, ModelKind, ModelSlot, ModelSpec, PricedAttempt, PricedModel,
    Prices, Reservation, SpendGate, Usage,
};

const WORKFLOW: &str = "w-1";

fn spec(id: &str, currency: &str) -> Arc<ModelSpec> {
    let spec = ModelSpec::new(id, "p", ModelBound::Concurrency(NonZeroU32::MIN)).unwrap();
    let prices = Prices::per_million(currency, 2.0, 10.0).unwrap();
    Arc::new(spec.prices(prices))
}

fn usd() -> Arc<ModelSpec> {
    spec("in-dollars", "USD")
}

fn eur() -> Arc<ModelSpec> {
    let prices = Prices::per_million("EUR", 3.0, 10.0).unwrap();
    Arc::new(ModelSpec::clone(&spec("in-euros", "EUR")).prices(prices))
}

fn unpriced() -> Arc<ModelSpec> {
    let bound = ModelBound::Concurrency(NonZeroU32::MIN);
    Arc::new(ModelSpec::new("unpriced", "p", bound).unwrap())
}

fn call(spec: &ModelSpec, input: u64, output: u64) -> ModelCall {
    let usage = Usage::new(input, output);
    ModelCall {
        model: spec.id.as_str().into(),
        served: Some("served-1".into()),
        kind: ModelKind::Llm,
        purpose: None,
        successful: true,
        stop_reason: None,
        usage: Some(usage),
        cost: spec.prices.map(|prices| prices.cost(&usage)),
        estimated: false,
        reason: None,
        cause: None,
        started_at: at(),
        ended_at: at() + Duration::from_secs(3),
    }
}

fn job() -> JobSnapshot {
    sample_snapshot("Summarize", WORKFLOW)
}

fn money(text: &str) -> Cost {
    text.parse().unwrap()
}

fn ledger(caps: &[&str]) -> Arc<CostLedger> {
    let ledger = CostLedger::new();
    for cap in caps {
        ledger.cap(WORKFLOW, money(cap));
    }
    ledger
}

/// Has the ledger judge a job that may read and write so many tokens.
fn judge(
    ledger: &CostLedger,
    job: &JobSnapshot,
    spec: &Arc<ModelSpec>,
    input: u32,
    output: u32,
) -> Result<(), JobError> {
    judge_again(ledger, job, spec, input, output, &[])
}

fn judge_again(
    ledger: &CostLedger,
    job: &JobSnapshot,
    spec: &Arc<ModelSpec>,
    input: u32,
    output: u32,
    calls: &[ModelCall],
) -> Result<(), JobError> {
    let reservation = Reservation {
        input,
        output,
        thinking: 0,
    };
    let model = PricedModel {
        slot: ModelSlot::new("s"),
        spec: Arc::clone(spec),
        reservation,
        cost: reservation.cost(spec),
    };
    ledger.judge(&PricedAttempt::new(job, &[model], calls))
}

fn refusal(result: Result<(), JobError>) -> String {
    let error = result.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::SpendCapExceeded { .. }));
    error.to_string()
}

fn committed(ledger: &CostLedger) -> Cost {
    ledger.committed(WORKFLOW, Currency::USD)
}

fn spent(ledger: &CostLedger) -> Cost {
    ledger.spent(WORKFLOW, Currency::USD)
}

fn with_calls(snapshot: &JobSnapshot, calls: &[ModelCall]) -> TerminalInfo {
    TerminalInfo::new(snapshot, 1, calls.into(), at())
}

fn completed(snapshot: &JobSnapshot, calls: &[ModelCall]) -> Arc<Event> {
    Arc::new(Event::Lifecycle(LifecycleEvent::Completed(JobCompleted {
        snapshot: snapshot.clone(),
        at: at(),
        result: None,
        terminal: with_calls(snapshot, calls),
    })))
}

fn failed(snapshot: &JobSnapshot, calls: &[ModelCall]) -> Arc<Event> {
    Arc::new(Event::Lifecycle(LifecycleEvent::Failed(JobFailed {
        snapshot: snapshot.clone(),
        at: at(),
        error: None,
        terminal: with_calls(snapshot, calls),
    })))
}

// case COST-06
// case COST-14
#[test]
fn ended_jobs_are_summed_by_currency_model_and_call() {
    let ledger = ledger(&[]);
    assert!(ledger.report(WORKFLOW).is_none());
    assert_eq!(spent(&ledger), money("0 USD"));
    ledger.observe(&completed(&job(), &[call(&usd(), 1_000_000, 100_000)]));
    ledger.observe(&completed(
        &job(),
        &[call(&usd(), 1_000_000, 0), call(&eur(), 1_000_000, 0)],
    ));
    ledger.observe(&failed(&job(), &[call(&unpriced(), 7, 5)]));
    assert_eq!(spent(&ledger), money("5 USD"));
    assert_eq!(ledger.spent(WORKFLOW, Currency::EUR), money("3 EUR"));
    assert_eq!(
        ledger.spent(WORKFLOW, "GBP".parse().unwrap()),
        money("0 GBP")
    );
    assert_eq!(ledger.spent("other", Currency::USD), money("0 USD"));

    let report = ledger.report(WORKFLOW).unwrap();
    assert_eq!((report.calls.len(), report.unpriced), (4, 1));
    assert!(report.caps.is_empty());
    let share = |id: &str| {
        let share = report.models.iter().find(|share| &*share.model == id);
        share.unwrap().clone()
    };
    let dollars = share("in-dollars");
    assert_eq!((dollars.calls, dollars.cost), (2, vec![money("5 USD")]));
    assert_eq!(dollars.usage, Usage::new(2_000_000, 100_000));
    assert_eq!(dollars.latency, Duration::from_secs(6));
    let unknown = share("unpriced");
    assert_eq!((unknown.cost.len(), unknown.usage), (0, Usage::new(7, 5)));
    let first = &report.calls[0];
    assert_eq!((&*first.name, &*first.model), ("Summarize", "in-dollars"));
    assert_eq!(first.served.as_deref(), Some("served-1"));
    assert!(first.job.starts_with("Summarize-"));
    ledger.forget(WORKFLOW);
    assert!(ledger.report(WORKFLOW).is_none());
}

// case COST-07
#[test]
fn a_reservation_is_committed_until_the_job_ends_and_refused_past_the_cap() {
    let ledger = ledger(&["5 USD"]);
    let first = job();
    judge(&ledger, &first, &usd(), 1_000_000, 100_000).unwrap();
    assert_eq!(
        (spent(&ledger), committed(&ledger)),
        (money("0 USD"), money("3 USD"))
    );
    ledger.settle(&first, &[call(&usd(), 1_000_000, 100_000)]);
    assert_eq!(
        (spent(&ledger), committed(&ledger)),
        (money("3 USD"), money("0 USD"))
    );

    let text = refusal(judge(&ledger, &job(), &usd(), 1_000_000, 100_000));
    for part in [
        "may cost 3.000000 USD",
        "spent 3.000000 USD",
        "committed 0.000000 USD",
        "cap of 5.000000 USD",
        "nothing that runs was stopped",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    judge(&ledger, &job(), &usd(), 55_000, 10_000).unwrap();
    assert_eq!(committed(&ledger), money("0.21 USD"));
    ledger.uncap(WORKFLOW);
    judge(&ledger, &job(), &usd(), 10_000_000, 1_000_000).unwrap();
}

// case COST-09
#[test]
fn under_a_cap_what_cannot_be_compared_with_it_is_refused() {
    let ledger = ledger(&["5 USD"]);
    let text = refusal(judge(&ledger, &job(), &eur(), 1, 1));
    assert!(
        text.contains("priced in EUR") && text.contains("add a cap in EUR"),
        "{text}"
    );
    let text = refusal(judge(&ledger, &job(), &unpriced(), 1, 1));
    assert!(text.contains("does not price"), "{text}");
    let free = sample_snapshot("Summarize", "uncapped");
    for spec in [eur(), unpriced(), usd()] {
        judge(&ledger, &free, &spec, 10_000_000, 1).unwrap();
    }
}

// case COST-10
#[test]
fn each_currency_is_judged_against_its_own_cap() {
    let ledger = ledger(&["5 USD", "1 EUR"]);
    judge(&ledger, &job(), &usd(), 1_000_000, 0).unwrap();
    refusal(judge(&ledger, &job(), &eur(), 1_000_000, 0));
    let euros = ledger.committed(WORKFLOW, Currency::EUR);
    assert_eq!(
        (committed(&ledger), euros),
        (money("2 USD"), money("0 EUR"))
    );
    judge(&ledger, &job(), &eur(), 100_000, 0).unwrap();
    assert_eq!(ledger.report(WORKFLOW).unwrap().caps.len(), 2);
    ledger.uncap(WORKFLOW);
    assert!(ledger.report(WORKFLOW).unwrap().caps.is_empty());
}

// case COST-11
#[test]
fn embeddings_cost_what_goes_in() {
    let ledger = ledger(&["1 USD"]);
    let prices = Prices::per_million("USD", 0.12, 0.0).unwrap();
    let spec = Arc::new(ModelSpec::clone(&unpriced()).prices(prices));
    let first = job();
    judge(&ledger, &first, &spec, 1_000_000, 0).unwrap();
    assert_eq!(committed(&ledger), money("0.12 USD"));
    refusal(judge(&ledger, &job(), &spec, 8_000_000, 0));
    ledger.settle(&first, &[call(&spec, 1_000_000, 0)]);
    let report = ledger.report(WORKFLOW).unwrap();
    assert_eq!(
        (spent(&ledger), committed(&ledger)),
        (money("0.12 USD"), money("0 USD"))
    );
    assert_eq!(
        (report.unpriced, report.models[0].usage.output_tokens),
        (0, 0)
    );
}

// case COST-12
#[test]
fn only_terminal_events_are_wanted() {
    let ledger = ledger(&[]);
    let snapshot = job();
    assert!(ledger.accepts(&completed(&snapshot, &[])));
    assert!(ledger.accepts(&failed(&snapshot, &[])));
    assert!(!ledger.accepts(&scheduled(&snapshot)));
    ledger.observe(&Arc::new(scheduled(&snapshot)));
    assert!(ledger.report(WORKFLOW).is_none());
    assert_eq!(terminal(&snapshot, 1).model_calls.len(), 0);
}

#[test]
fn the_calls_of_a_job_count_once_whoever_tells_of_its_end() {
    let ledger = ledger(&[]);
    let snapshot = job();
    let calls = [call(&usd(), 1_000_000, 0)];
    ledger.settle(&snapshot, &calls);
    ledger.observe(&completed(&snapshot, &calls));
    assert_eq!(spent(&ledger), money("2 USD"));
}

// case COST-15
#[test]
fn a_further_attempt_takes_the_place_of_the_one_before_and_keeps_what_it_used() {
    let ledger = ledger(&["5 USD"]);
    let snapshot = job();
    judge(&ledger, &snapshot, &usd(), 2_000_000, 0).unwrap();
    assert_eq!(committed(&ledger), money("4 USD"));
    let used = [call(&usd(), 500_000, 0)];
    judge_again(&ledger, &snapshot, &usd(), 2_000_000, 0, &used).unwrap();
    assert_eq!(
        committed(&ledger),
        money("5 USD"),
        "one was used, four are reserved anew"
    );
    let more = [call(&usd(), 500_000, 0), call(&usd(), 500_000, 0)];
    let text = refusal(judge_again(&ledger, &snapshot, &usd(), 2_000_000, 0, &more));
    assert!(text.contains("committed 2.000000"), "{text}");
    assert_eq!(
        committed(&ledger),
        money("5 USD"),
        "a refusal changes nothing"
    );
    ledger.settle(&snapshot, &more);
    assert_eq!(
        (spent(&ledger), committed(&ledger)),
        (money("2 USD"), money("0 USD"))
    );
}
