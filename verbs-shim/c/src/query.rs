//! What devices and ports say of themselves.

use std::ffi::{c_char, c_int, c_void};

use verbs_shim::Profile;
use verbs_shim::link::Link;

use crate::abi::{arg, code, export, fill, minus_one, negative, out};
use crate::bindings::{
    IBV_LINK_LAYER_UNSPECIFIED, IBV_MTU_256, IBV_MTU_4096, IBV_PORT_ACTIVE, PHYS_STATE_LINK_UP, ibv_context,
    ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_port_attr,
};
use crate::context::Context;
use crate::errno::{EINVAL, Errno};

/// PCI vendor of EFA.
pub(crate) const VENDOR_ID: u32 = 0x1d0f;
const PKEY: u16 = 0xffff;

fn device_attr(context: &Context) -> Result<ibv_device_attr, Errno> {
    let p: &Profile = context.nic()?.profile();
    // All fields of the structure are numbers.
    let mut attr: ibv_device_attr = unsafe { std::mem::zeroed() };
    let [a, b, c, d] = p.fw_ver;
    for (to, from) in attr.fw_ver.iter_mut().zip(format!("{a}.{b}.{c}.{d}").bytes()) {
        *to = from as c_char;
    }
    attr.node_guid = context.device.guid();
    attr.max_mr_size = p.max_mr_size;
    // 4 KiB and every power of two above.
    attr.page_size_cap = !0xfff;
    attr.vendor_id = VENDOR_ID;
    attr.vendor_part_id = p.part_id;
    attr.hw_ver = p.hw_ver;
    attr.max_qp = p.max_qp as c_int;
    attr.max_qp_wr = p.max_sq_wr.min(p.max_rq_wr) as c_int;
    attr.max_sge = p.max_sq_sge.min(p.max_rq_sge).into();
    attr.max_sge_rd = 1;
    attr.max_cq = p.max_cq as c_int;
    attr.max_cqe = p.max_cqe as c_int;
    attr.max_mr = p.max_mr as c_int;
    attr.max_pd = p.max_pd as c_int;
    attr.max_ah = p.max_ah as c_int;
    attr.max_pkeys = 1;
    attr.phys_port_cnt = 1;
    Ok(attr)
}

export!(
    "IBVERBS_1.1",
    fn ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
        code(|| {
            *unsafe { out(attr)? } = device_attr(unsafe { Context::of(context)? })?;
            Ok(())
        })
    }
);

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const u32,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    code(|| {
        if unsafe { input.as_ref() }.is_some_and(|&comp_mask| comp_mask != 0)
            || attr.is_null()
            || attr_size < size_of::<ibv_device_attr>()
        {
            return Err(EINVAL);
        }
        // All fields of the structure are numbers.
        let mut all: ibv_device_attr_ex = unsafe { std::mem::zeroed() };
        all.orig_attr = device_attr(unsafe { Context::of(context)? })?;
        all.phys_port_cnt_ex = 1;
        unsafe { fill(attr, attr_size, &all) };
        Ok(())
    })
}

fn port_attr(context: &Context, port: u32) -> Result<ibv_port_attr, Errno> {
    let p = context.nic()?.profile();
    if port != 1 {
        return Err(EINVAL);
    }
    // All fields of the structure are numbers.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    attr.state = IBV_PORT_ACTIVE;
    attr.phys_state = PHYS_STATE_LINK_UP;
    attr.link_layer = IBV_LINK_LAYER_UNSPECIFIED;
    // The largest step that the message size reaches; the enumeration ends at 4096.
    let mtu = (IBV_MTU_256..=IBV_MTU_4096).rev().find(|&mtu| 128 << mtu <= p.max_msg).unwrap_or(IBV_MTU_256);
    attr.max_mtu = mtu;
    attr.active_mtu = mtu;
    attr.max_msg_sz = p.max_msg;
    attr.gid_tbl_len = 1;
    attr.pkey_tbl_len = 1;
    attr.lmc = 1;
    attr.max_vl_num = 1;
    let link = Link::of(p.gbps);
    (attr.active_width, attr.active_speed, attr.active_speed_ex) =
        (link.width(), link.short_speed(), link.speed().into());
    Ok(attr)
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port_num: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    code(|| {
        let known = port_attr(unsafe { Context::of(context)? }, port_num.into())?;
        if attr.is_null() {
            return Err(EINVAL);
        }
        unsafe { fill(attr, attr_len, &known) };
        Ok(())
    })
}

/// For programs of old, whose structure ends before `port_cap_flags2`.
const OLD_PORT_ATTR: usize = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);

export!(
    "IBVERBS_1.1",
    fn ibv_query_port(context: *mut ibv_context, port_num: u8, attr: *mut c_void) -> c_int {
        unsafe { query_port(context, port_num, attr.cast(), OLD_PORT_ATTR) }
    }
);

export!(
    "IBVERBS_1.16",
    fn ibv_query_port_speed(context: *mut ibv_context, port_num: u32, port_speed: *mut u64) -> c_int {
        code(|| {
            let p = unsafe { Context::of(context)? }.nic()?.profile();
            if port_num != 1 {
                return Err(EINVAL);
            }
            // In units of 100 Mbit/s.
            *unsafe { out(port_speed)? } = u64::from(p.gbps) * 10;
            Ok(())
        })
    }
);

pub(crate) unsafe fn gid(context: *mut ibv_context, port: u32, index: i64) -> Result<ibv_gid, Errno> {
    let nic = unsafe { Context::of(context)? }.nic()?;
    if port == 1 && index == 0 { Ok(ibv_gid { raw: nic.gid().0 }) } else { Err(EINVAL) }
}

export!(
    "IBVERBS_1.1",
    fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, to: *mut ibv_gid) -> c_int {
        minus_one(|| {
            *unsafe { out(to)? } = unsafe { gid(context, port_num.into(), index.into())? };
            Ok(0)
        })
    }
);

export!(
    "IBVERBS_PRIVATE_34",
    fn ibv_query_gid_type(context: *mut ibv_context, port_num: u8, index: u32, gid_type: *mut c_int) -> c_int {
        minus_one(|| {
            unsafe { gid(context, port_num.into(), index.into())? };
            // InfiniBand's, or the first of RoCE's: not worth a distinction there, and none of both here.
            *unsafe { out(gid_type)? } = 0;
            Ok(0)
        })
    }
);

unsafe fn gid_entry(context: *mut ibv_context, port_num: u32, gid_index: u32) -> Result<ibv_gid_entry, Errno> {
    let gid = unsafe { gid(context, port_num, gid_index.into())? };
    Ok(ibv_gid_entry { gid, gid_index, port_num, gid_type: 0, ndev_ifindex: 0 })
}

export!(
    "IBVERBS_1.11",
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> c_int {
        code(|| {
            let known = unsafe { gid_entry(context, port_num, gid_index)? };
            // There are no flags, and no program whose entry ends earlier.
            if flags != 0 || entry.is_null() || entry_size < size_of::<ibv_gid_entry>() {
                return Err(EINVAL);
            }
            unsafe { fill(entry, entry_size, &known) };
            Ok(())
        })
    }
);

export!(
    "IBVERBS_1.11",
    fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> isize {
        negative(|| {
            let known = unsafe { gid_entry(context, 1, 0)? };
            if flags != 0 || max_entries == 0 || entries.is_null() || entry_size == 0 {
                return Err(EINVAL);
            }
            // Of an entry there is as much as there is room for.
            unsafe { fill(entries, entry_size, &known) };
            Ok(1)
        })
    }
);

export!(
    "IBVERBS_1.1",
    fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int {
        minus_one(|| {
            unsafe { Context::of(context)? }.nic()?;
            if port_num != 1 || index != 0 {
                return Err(EINVAL);
            }
            *unsafe { out(pkey)? } = PKEY.to_be();
            Ok(0)
        })
    }
);

export!(
    "IBVERBS_1.5",
    fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int {
        minus_one(|| {
            unsafe { arg(context)? };
            if port_num == 1 && u16::from_be(pkey) == PKEY { Ok(0) } else { Err(EINVAL) }
        })
    }
);
