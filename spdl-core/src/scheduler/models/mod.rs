//! Model checks of the scheduler by loom: every interleaving of small graphs.

mod budget;
mod presence;
mod queue;
