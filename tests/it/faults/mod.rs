//! Faults on real nodes and real sockets: what is asked for happens, nothing else does, and it ends.

mod breaks;
mod errors;
mod life;
mod node;
mod refused;
mod workers;
