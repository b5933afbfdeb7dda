//! A flow that is bound to one customer, and a model in it that asks for another's order: directly,
//! through a doer, through a dependency and through a delayed job. It is refused each time, told
//! why, and at last asks for what it may see.
//!
//! Nothing in the tools or in the doer between them checks anything: the binding stands on the flow,
//! and the door judges what each input names, whatever route it took.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::guard::{Axis, JobInput, Scope};
use nucleo_runtime::llm::{Conversation, ScriptedClient};
use nucleo_runtime::models::{Depth, Grade, ModelBound, ModelSlot, ModelSpec, OutputSize};
use nucleo_runtime::{
    Doer, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources,
    OrchestratorContext, Workflow,
};

/// What the model says, call by call: a route, a customer and the number of an order.
const SCRIPT: [&str; 5] = [
    "directly bob 1042",
    "by-doer bob 1042",
    "afterwards bob 1042",
    "later bob 1042",
    "directly ann 17",
];

const ORDERS: [(&str, u32, &str); 2] = [("ann", 17, "a lamp"), ("bob", 1042, "a ring")];

/// The customer whose case this is.
#[derive(Debug)]
struct CustomerScope(String);

impl Scope for CustomerScope {
    fn axes(&self) -> Vec<Axis> {
        vec![Axis::new("customer", self.0.as_str())]
    }
}

/// What the model asks for. Model output, so none of it is trusted.
struct OrderQuery {
    customer: String,
    number: u32,
}

impl JobInput for OrderQuery {
    fn claim(&self) -> Option<Arc<dyn Scope>> {
        Some(Arc::new(CustomerScope(self.customer.clone())))
    }

    fn text(&self) -> Option<String> {
        Some(format!("{} {}", self.customer, self.number))
    }
}

/// Looks an order up. It works from the very value that the door judged, and looks only among the
/// orders of the customer that it names: an honest name with another's number finds nothing.
struct LookUpOrder(Arc<OrderQuery>);

impl Job for LookUpOrder {
    type Output = String;

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::clone(&self.0) as _)
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let query = &self.0;
        ORDERS
            .iter()
            .find(|(customer, number, _)| *customer == query.customer && *number == query.number)
            .map(|(.., what)| (*what).to_owned())
            .ok_or_else(|| JobError::not_found("order", query.number))
    }
}

/// A composition that knows of no customer at all.
struct LookUpByDoer(Arc<OrderQuery>);

impl Doer for LookUpByDoer {
    type Output = String;

    fn execute(&mut self, context: &OrchestratorContext) -> Result<String, JobError> {
        let handle = context.submit(LookUpOrder(Arc::clone(&self.0)))?;
        Ok((*handle.get()?).clone())
    }
}

const NEXT: ModelSlot = ModelSlot::new("next-step");

/// Asks the model what to do next.
struct Ask {
    conversation: Conversation,
}

impl Job for Ask {
    type Output = String;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model(
            NEXT,
            Grade::Small,
            Depth::Standard,
            self.conversation.estimated_tokens(),
            OutputSize::Compact,
        )
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let reply = resources
            .model(NEXT)?
            .client()
            .respond(&self.conversation)?;
        Ok(reply.text().to_owned())
    }
}

/// Works on one customer's case as the model says.
struct WorkOnCase {
    customer: String,
    dispatcher: JobDispatcher,
}

impl Doer for WorkOnCase {
    type Output = Vec<String>;

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        Some(Arc::new(CustomerScope(self.customer.clone())))
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<Vec<String>, JobError> {
        let mut conversation = Conversation::new().user("Look up what the customer ordered.");
        let mut found = Vec::new();
        while found.is_empty() {
            context.next_step();
            let ask = Ask {
                conversation: conversation.clone(),
            };
            let asked = context.submit_in_current_step(ask)?.get()?;
            let answer = match self.look_up(context, &asked).and_then(|job| job.get()) {
                Ok(order) => {
                    found.push((*order).clone());
                    format!("found: {order}")
                }
                Err(error) if error.is_correctable() => error.llm_message(),
                Err(error) => return Err(error),
            };
            println!("{asked:<24} {answer}");
            conversation = conversation.assistant(asked.as_str()).user(answer);
        }
        Ok(found)
    }
}

impl WorkOnCase {
    /// Takes the route that the model chose.
    fn look_up(
        &self,
        context: &OrchestratorContext,
        asked: &str,
    ) -> Result<JobHandle<String>, JobError> {
        let words: Vec<_> = asked.split_whitespace().collect();
        let [route, customer, number] = words[..] else {
            return Err(JobError::correctable("say: <route> <customer> <number>"));
        };
        let number = number
            .parse()
            .map_err(|_| JobError::invalid_input("number", number, "must be a number"))?;
        let query = Arc::new(OrderQuery {
            customer: customer.to_owned(),
            number,
        });
        Ok(match route {
            "directly" => context.submit(LookUpOrder(query))?,
            "by-doer" => context.submit(LookUpByDoer(query))?,
            "afterwards" => {
                let own = Arc::new(OrderQuery {
                    customer: self.customer.clone(),
                    number: 17,
                });
                let first = context.submit(LookUpOrder(own))?;
                context
                    .submit_with(LookUpOrder(query))
                    .after(&first)
                    .submit()?
            }
            "later" => {
                let workflow = Workflow::new(context.user(), "later")?;
                let delay = Duration::from_millis(10);
                self.dispatcher
                    .submit_delayed(delay, &workflow, LookUpOrder(query))?
                    .get()?
            }
            other => return Err(JobError::invalid_input("route", other, "must be a route")),
        })
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let one_at_once = ModelBound::Concurrency(NonZeroU32::MIN);
    let spec = ModelSpec::new("scripted", "example", one_at_once)?;
    let dispatcher = JobDispatcher::builder()
        .model(spec, Arc::new(ScriptedClient::from_steps(SCRIPT)))
        .build()?;
    dispatcher.start()?;
    let workflow = Workflow::new("support", "case")?;
    println!("{:<24} what the runtime answers", "what the model asks for");
    let case = WorkOnCase {
        customer: "ann".to_owned(),
        dispatcher: dispatcher.clone(),
    };
    let found = dispatcher.submit(&workflow, case)?.get()?;
    println!("ann ordered {}", found.join(", "));
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
