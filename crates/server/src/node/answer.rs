//! How clients get their answers.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::oneshot;

use super::engine::Engine;
use super::queue::CommandResult;

/// A waiter, and the result of its command.
pub(crate) type Answer = (oneshot::Sender<CommandResult>, CommandResult);

/// Up to this many answers are given from outside the runtime.
const ANSWERS_FROM_OUTSIDE: usize = 4;

/// Answers a group. Each answer wakes a task. From outside the runtime each wake-up takes the lock of the runtime's
/// queue and may wake a worker. More answers than `ANSWERS_FROM_OUTSIDE` become one task, which wakes the others from
/// inside. How long that task waited tells the queue how far the runtime is behind.
pub(crate) fn answer_all(engine: &Arc<Engine>, answers: Vec<Answer>) {
    let give = |answers| {
        for (reply, result) in answers {
            answer(reply, result);
        }
    };
    match &engine.runtime {
        Some(runtime) if answers.len() > ANSWERS_FROM_OUTSIDE => {
            let (engine, since) = (Arc::clone(engine), Instant::now());
            drop(runtime.spawn(async move {
                engine.queue.note_lag(since.elapsed());
                give(answers);
            }));
        }
        _ => give(answers),
    }
}

/// Answers a client, which may have gone.
pub(crate) fn answer(reply: oneshot::Sender<CommandResult>, result: CommandResult) {
    if reply.send(result).is_err() {
        tracing::trace!("a client went before its answer");
    }
}
