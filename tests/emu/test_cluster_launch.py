"""clusterlaunchcontrol: the answer is always that nothing was cancelled."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emu.small_kernels import kernel, run

REQUEST = "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128"
BODY = """
  mov.u32 %r1, %tid.x;
  mov.u32 %r2, %cluster_ctarank;
  mov.u32 %r10, smem;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 mbarrier.init.shared::cta.b64 [%r10], 1;
  @%p1 fence.mbarrier_init.release.cluster;
  @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r10], 16;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  setp.eq.and.u32 %p2, {issuer}, 0, %p1;
  @%p2 {request} [%r10+16], [%r10];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r10], 0;
  @!%p3 bra WAIT;
  ld.shared.b128 %q1, [%r10+16];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p4, %q1;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {{%r20, %r21, %r22, _}}, %q1;
  selp.u32 %r3, 1, 2, %p4;
  mad.lo.u32 %r4, %r2, 32, %r1;
  ld.param.u64 %rd1, [out];
  mad.wide.u32 %rd1, %r4, 4, %rd1;
  st.global.u32 [%rd1], %r3;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;"""


@pytest.mark.parametrize("every", [False, True])
@pytest.mark.parametrize("schedule", ["eager", "lazy"])
def test_nothing_is_ever_cancelled(every: bool, schedule: str) -> None:
    request = REQUEST.format(multicast=".multicast::cluster::all" if every else "")
    text = BODY.format(issuer="%r2" if every else "0", request=request)
    out = np.zeros(64, np.uint32)
    source = kernel(text, (".u64 out",), arch="sm_100a", registers=".reg .b128 %q<4>;")
    run(source, [out], block=32, grid=2, cluster=2, schedule=schedule)
    assert (out == 2).all()
