//! Asynchronous events.
//!
//! There is one kind: a completion queue was full and lost an entry. Errors of queue pairs are told by completions, and so is the
//! failure of a device; ports do not fail.

use std::ffi::c_int;

use crate::abi::{arg, code, export, waiting};
use crate::bindings::{IBV_EVENT_CQ_ERR, ibv_async_event, ibv_context};
use crate::context::Context;
use crate::cq::Cq;
use crate::errno::EINVAL;

/// A completion queue lost an entry. It is there while the event is in a queue: destroying it drops the event first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overrun(*const Cq);

unsafe impl Send for Overrun {}

impl Overrun {
    pub(crate) fn of(cq: &Cq) -> Overrun {
        Overrun(cq)
    }

    pub(crate) fn is_of(self, cq: &Cq) -> bool {
        std::ptr::eq(self.0, cq)
    }
}

export!(
    "IBVERBS_1.1",
    cancellable fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        waiting(|| {
            let context = unsafe { Context::of(context)? };
            if event.is_null() {
                return Err(EINVAL);
            }
            Ok(context.files()?.events.take(|Overrun(cq)| {
                let cq = unsafe { &*cq };
                cq.async_event_taken();
                let element = cq.public().cast();
                unsafe { event.write(ibv_async_event { element, event_type: IBV_EVENT_CQ_ERR }) };
            }))
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_ack_async_event(event: *mut ibv_async_event) {
        code(|| {
            let event = unsafe { arg(event)? };
            if event.event_type == IBV_EVENT_CQ_ERR {
                unsafe { Cq::of(event.element.cast())? }.ack_async();
            }
            Ok(())
        });
    }
);
