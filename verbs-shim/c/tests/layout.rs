//! The structures are laid out as the installed headers say.

#[path = "../src/bindings/mod.rs"]
#[allow(dead_code, unused_imports, unreachable_pub, reason = "the layout alone is of interest here")]
mod bindings;
mod common;

use std::fmt::Write as _;

use bindings::*;

/// Ours, newer than the header of Debian 12; what that header has of them is compared.
const GREW: [&str; 5] = ["ibv_port_attr", "efadv_qp_init_attr", "efadv_cq_init_attr", "efadv_device_attr", "efadv_cq"];
/// Not in that header at all.
const NEW: [&str; 6] =
    ["efadv_mr_attr", "efadv_qp", "efadv_sq_depth_attr", "efadv_rq_depth_attr", "efadv_cq_attr", "efadv_wq_attr"];
/// Fields that go by another name there, or are part of a structure without a name.
const OTHER_NAMES: [(&str, &str, &str); 6] = [
    ("ibv_send_wr", "bind_mw", "bind_mw.mw"),
    ("efadv_device_attr", "inline_buf_size_ex", "reserved"),
    ("efadv_qp_init_attr", "flags", "reserved[0]"),
    ("efadv_qp_init_attr", "sl", "reserved[2]"),
    ("efadv_qp_init_attr", "reserved", "reserved[3]"),
    ("verbs_context", "r#priv", "priv"),
];

#[test]
fn structures_are_those_of_the_headers() {
    let all = [
        ibv_gid_entry::LAYOUT,
        ibv_device::LAYOUT,
        ibv_context_ops::LAYOUT,
        ibv_context::LAYOUT,
        verbs_context::LAYOUT,
        ibv_device_attr::LAYOUT,
        ibv_device_attr_ex::LAYOUT,
        ibv_port_attr::LAYOUT,
        ibv_pd::LAYOUT,
        ibv_td::LAYOUT,
        ibv_mr::LAYOUT,
        ibv_ah::LAYOUT,
        ibv_comp_channel::LAYOUT,
        ibv_cq::LAYOUT,
        ibv_cq_ex::LAYOUT,
        ibv_qp::LAYOUT,
        ibv_qp_ex::LAYOUT,
        ibv_async_event::LAYOUT,
        ibv_global_route::LAYOUT,
        ibv_grh::LAYOUT,
        ibv_ah_attr::LAYOUT,
        ibv_td_init_attr::LAYOUT,
        ibv_parent_domain_init_attr::LAYOUT,
        ibv_cq_init_attr_ex::LAYOUT,
        ibv_qp_cap::LAYOUT,
        ibv_qp_init_attr::LAYOUT,
        ibv_qp_init_attr_ex::LAYOUT,
        ibv_qp_attr::LAYOUT,
        ibv_ece::LAYOUT,
        ibv_sge::LAYOUT,
        ibv_data_buf::LAYOUT,
        ibv_send_wr::LAYOUT,
        ibv_recv_wr::LAYOUT,
        ibv_wc::LAYOUT,
        ibv_poll_cq_attr::LAYOUT,
        efadv_device_attr::LAYOUT,
        efadv_ah_attr::LAYOUT,
        efadv_qp_init_attr::LAYOUT,
        efadv_cq_init_attr::LAYOUT,
        efadv_cq::LAYOUT,
    ];
    let mut program = String::from(
        "#include <stdio.h>\n#include <stddef.h>\n#include <infiniband/verbs.h>\n#include <infiniband/efadv.h>\n\
         int main(void) {\n",
    );
    let mut expected = Vec::new();
    for layout in &all {
        let name = layout.name;
        assert!(!NEW.contains(&name));
        if !GREW.contains(&name) {
            let _ = writeln!(program, "printf(\"{name} %zu\\n\", sizeof(struct {name}));");
            expected.push(format!("{name} {}", layout.size));
        }
        for &(field, offset) in layout.fields {
            let other = OTHER_NAMES.iter().find(|o| (o.0, o.1) == (name, field)).map(|o| o.2);
            let newer = matches!(
                (name, field),
                ("ibv_port_attr", "active_speed_ex")
                    | ("efadv_qp_init_attr", "wr_flags")
                    | ("efadv_cq_init_attr", "flags" | "buffer" | "length" | "offset" | "fd" | "reserved")
                    | ("efadv_cq", "wc_is_unsolicited")
            );
            if newer {
                continue;
            }
            let theirs = other.unwrap_or(field);
            let _ = writeln!(program, "printf(\"{name}.{field} %zu\\n\", offsetof(struct {name}, {theirs}));");
            expected.push(format!("{name}.{field} {offset}"));
        }
    }
    for (what, offset) in [
        ("wr.rdma.remote_addr", std::mem::offset_of!(ibv_send_wr, wr) + std::mem::offset_of!(Rdma, remote_addr)),
        ("wr.rdma.rkey", std::mem::offset_of!(ibv_send_wr, wr) + std::mem::offset_of!(Rdma, rkey)),
        ("wr.ud.ah", std::mem::offset_of!(ibv_send_wr, wr) + std::mem::offset_of!(Ud, ah)),
        ("wr.ud.remote_qpn", std::mem::offset_of!(ibv_send_wr, wr) + std::mem::offset_of!(Ud, remote_qpn)),
        ("wr.ud.remote_qkey", std::mem::offset_of!(ibv_send_wr, wr) + std::mem::offset_of!(Ud, remote_qkey)),
    ] {
        let _ = writeln!(program, "printf(\"{what} %zu\\n\", offsetof(struct ibv_send_wr, {what}));");
        expected.push(format!("{what} {offset}"));
    }
    program.push_str("return 0; }\n");
    let bench = common::Bench::new();
    let out = bench.run(&mut bench.command(bench.compile_text("layout", &program)));
    let theirs = String::from_utf8(out.stdout).expect("numbers");
    let theirs: Vec<&str> = theirs.lines().collect();
    assert!(theirs.len() > 400, "{} lines only", theirs.len());
    let wrong: Vec<_> = theirs.iter().zip(&expected).filter(|(theirs, ours)| theirs != ours).collect();
    assert!(wrong.is_empty() && theirs.len() == expected.len(), "header against ours: {wrong:?}");
}
