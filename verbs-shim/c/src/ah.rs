//! Address handles.

use std::cell::UnsafeCell;
use std::ffi::c_int;

use verbs_shim::card::UNKNOWN_AH;
use verbs_shim::{Gid, PdId};

use crate::abi::{arg, code, export, minus_one, out, pointer};
use crate::bindings::{
    IBV_WC_GRH, ibv_ah, ibv_ah_attr, ibv_context, ibv_gid, ibv_global_route, ibv_grh, ibv_pd, ibv_wc,
};
use crate::context::{Context, Kind};
use crate::errno::{EINVAL, Errno};
use crate::pd_mr::Pd;
use crate::qp::Qp;
use crate::query::gid;

/// An address handle.
#[repr(C)]
pub(crate) struct Ah {
    public: UnsafeCell<ibv_ah>,
    pub(crate) context: &'static Context,
    pd: PdId,
    /// Its number in the protection domain.
    pub(crate) number: u16,
}

impl Ah {
    #[inline]
    pub(crate) unsafe fn of<'a>(ah: *const ibv_ah) -> Result<&'a Ah, Errno> {
        unsafe { arg(ah.cast::<Ah>()) }
    }

    /// Its number for a queue pair: none if it is of another protection domain, where somebody else may have the same number.
    #[inline]
    pub(crate) fn number_for(&self, qp: &Qp) -> u16 {
        if self.pd == qp.init.pd && std::ptr::eq(self.context, qp.context) { self.number } else { UNKNOWN_AH }
    }
}

unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Errno> {
    let pd = unsafe { Pd::of(pd)? };
    let problem = match attr {
        ibv_ah_attr { port_num, .. } if *port_num != 1 => Some("port_num is not 1"),
        ibv_ah_attr { is_global: 0, .. } => Some("is_global is 0, so it names no GID (perftest names one with -x 0)"),
        ibv_ah_attr { grh, .. } if grh.sgid_index != 0 => Some("sgid_index is not 0, and there is one GID"),
        _ => None,
    };
    if let Some(problem) = problem {
        tracing::warn!("address handle refused: {problem}");
        return Err(EINVAL);
    }
    let gid = Gid(unsafe { attr.grh.dgid.raw });
    let number = pd.context.nic()?.create_ah(pd.id, gid)?;
    let public = UnsafeCell::new(ibv_ah { context: pd.context.public(), pd: pd.public(), handle: number.into() });
    let ah = Box::into_raw(Box::new(Ah { public, context: pd.context, pd: pd.id, number }));
    pd.context.objects.add(Kind::Ah, ah);
    Ok(ah.cast())
}

export!(
    "IBVERBS_1.1",
    fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
        pointer(|| unsafe { create(pd, arg(attr)?) })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int {
        code(|| {
            let this = unsafe { Ah::of(ah)? };
            if !this.context.is_dead() {
                this.context.nic()?.destroy_ah(this.pd, this.number)?;
                this.context.objects.remove(Kind::Ah, ah);
            }
            drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
            Ok(())
        })
    }
);

/// Destroys the handle in the card.
pub(crate) fn abandon(ah: &Ah) {
    if let Ok(nic) = ah.context.nic() {
        // It is known to the card, because it was in the list of objects.
        let _ = nic.destroy_ah(ah.pd, ah.number);
    }
}

/// How to answer a message: the way that its completion and its GRH tell, if it was for this port.
unsafe fn answer_to(
    context: *mut ibv_context,
    port_num: u8,
    wc: *const ibv_wc,
    grh: *const ibv_grh,
) -> Result<ibv_ah_attr, Errno> {
    let wc = unsafe { arg(wc)? };
    let mut attr = ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: [0; 16] },
            flow_label: 0,
            sgid_index: 0,
            hop_limit: 0,
            traffic_class: 0,
        },
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        static_rate: 0,
        is_global: 0,
        port_num,
    };
    if wc.wc_flags & IBV_WC_GRH != 0 {
        let grh = unsafe { arg(grh)? };
        if unsafe { gid(context, port_num.into(), 0)?.raw != grh.dgid.raw } {
            return Err(EINVAL);
        }
        attr.is_global = 1;
        attr.grh.dgid = grh.sgid;
        attr.grh.hop_limit = 0xff;
        let word = u32::from_be(grh.version_tclass_flow);
        attr.grh.flow_label = word & 0xf_ffff;
        attr.grh.traffic_class = (word >> 20) as u8;
    }
    Ok(attr)
}

export!(
    "IBVERBS_1.1",
    fn ibv_init_ah_from_wc(
        context: *mut ibv_context,
        port_num: u8,
        wc: *mut ibv_wc,
        grh: *mut ibv_grh,
        attr: *mut ibv_ah_attr,
    ) -> c_int {
        minus_one(|| {
            unsafe { Context::of(context)? };
            *unsafe { out(attr)? } = unsafe { answer_to(context, port_num, wc, grh)? };
            Ok(0)
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah {
        pointer(|| unsafe { create(pd, &answer_to(Pd::of(pd)?.context.public(), port_num, wc, grh)?) })
    }
);
