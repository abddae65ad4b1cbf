"""Kernels of the MuJoCo Warp backend beside MuJoCo Warp's own: masked writes and the watch over capacities.

Every kernel is launched over all worlds and leaves those outside its mask alone, so that nothing is read on the host.
"""

from __future__ import annotations

# ruff: noqa: UP018 (Warp takes a bare 0.0 for a constant that a loop may not change)
import warp as wp

wp.set_module_options({"enable_backward": False})

# A world's threads take columns in turn: most worlds have nothing to do, and a thread for each of their columns takes
# longer to start than the others to work.
THREADS = wp.constant(32)
ROW_THREADS = wp.constant(64)  # of `clear_rows`, for rows that are long


@wp.func
def clear(rows: wp.array2d(dtype=float), world: int, first: int, threads: int):
    """Clear a thread's columns of a world's row."""
    for i in range(first, rows.shape[1], threads):
        rows[world, i] = 0.0


@wp.kernel
def write_rows(
    written: wp.array(dtype=wp.bool),
    restarted: wp.array(dtype=wp.bool),
    staging_qpos: wp.array2d(dtype=float),
    staging_qvel: wp.array2d(dtype=float),
    last_substep: wp.array(dtype=wp.bool),
    # written
    qpos: wp.array2d(dtype=float),
    qvel: wp.array2d(dtype=float),
    # cleared where restarted
    ctrl: wp.array2d(dtype=float),
    act: wp.array2d(dtype=float),
    act_dot: wp.array2d(dtype=float),
    qacc: wp.array2d(dtype=float),
    qacc_warmstart: wp.array2d(dtype=float),
    qfrc_applied: wp.array2d(dtype=float),
    xfrc_applied: wp.array2d(dtype=float),
    actuator_force: wp.array2d(dtype=float),
    sensordata: wp.array2d(dtype=float),
    time: wp.array(dtype=float),
):
    """Take over the staged state of written worlds; restarted ones also forget what the next step would read."""
    world, first = wp.tid()
    if not written[world]:
        return
    for i in range(first, qpos.shape[1], THREADS):
        qpos[world, i] = staging_qpos[world, i]
    for i in range(first, qvel.shape[1], THREADS):
        qvel[world, i] = staging_qvel[world, i]
    if not restarted[world]:
        return
    if first == 0:
        time[world] = 0.0
    clear(qacc, world, first, THREADS)
    clear(qacc_warmstart, world, first, THREADS)
    clear(qfrc_applied, world, first, THREADS)
    clear(ctrl, world, first, THREADS)
    clear(actuator_force, world, first, THREADS)
    clear(act, world, first, THREADS)
    clear(act_dot, world, first, THREADS)
    clear(xfrc_applied, world, first, THREADS)
    for i in range(first, sensordata.shape[1], THREADS):
        if last_substep[i]:
            sensordata[world, i] = 0.0


@wp.kernel
def clear_rows(
    mask: wp.array(dtype=wp.bool),
    a: wp.array2d(dtype=float),
    b: wp.array2d(dtype=float),
    c: wp.array2d(dtype=float),
    d: wp.array2d(dtype=float),
):
    """Clear the rows of the worlds of a mask in four arrays."""
    world, first = wp.tid()
    if not mask[world]:
        return
    clear(a, world, first, ROW_THREADS)
    clear(b, world, first, ROW_THREADS)
    clear(c, world, first, ROW_THREADS)
    clear(d, world, first, ROW_THREADS)


@wp.kernel
def take_rows(
    written: wp.array(dtype=wp.bool),
    given: wp.array2d(dtype=float),
    live: wp.array2d(dtype=float),
    changed: wp.array(dtype=wp.bool),
):
    """Take over a model field's rows of written worlds, and say in which worlds one differs from before."""
    world, first = wp.tid()
    if not written[world]:
        return
    for i in range(first, live.shape[1], THREADS):
        if live[world, i] != given[world, i]:
            live[world, i] = given[world, i]
            changed[world] = True


@wp.kernel
def count_contacts(
    nacon: wp.array(dtype=int),
    worldid: wp.array(dtype=int),
    contacts: wp.array(dtype=int),
):
    """Count the contacts of each world among those that found a place in the shared pool."""
    i = wp.tid()
    if i < wp.min(nacon[0], worldid.shape[0]):
        wp.atomic_add(contacts, worldid[i], 1)


@wp.kernel
def watch(
    masks: wp.array(dtype=int),
    nacon: wp.array(dtype=int),
    ncollision: wp.array(dtype=int),
    nefc: wp.array(dtype=int),
    contacts: wp.array(dtype=int),
    overflow: wp.array(dtype=int),
    counts: wp.array(dtype=wp.int64),
    needs: wp.array(dtype=int),
):
    """Count the worlds whose overflow bits match each mask, keep the largest needs, and clear for the next tick.

    ``needs`` is: places in the contact pool of all worlds, contacts of one world, constraint rows of one world.
    """
    world = wp.tid()
    bits = overflow[world]
    overflow[world] = 0
    if bits != 0:
        for kind in range(masks.shape[0]):
            if (bits & masks[kind]) != 0:
                wp.atomic_add(counts, kind, wp.int64(1))
    if world == 0:
        wp.atomic_max(needs, 0, wp.max(nacon[0], ncollision[0]))
    if contacts[world] > needs[1]:
        wp.atomic_max(needs, 1, contacts[world])
    if nefc[world] > needs[2]:
        wp.atomic_max(needs, 2, nefc[world])
    contacts[world] = 0


@wp.func
def point_velocity(rotation: wp.vec3, translation: wp.vec3, offset: wp.vec3):
    """Velocity of the point at ``offset`` from where a motion is given."""
    return translation + wp.cross(rotation, offset)


@wp.kernel
def inertia_matrix(
    changed: wp.array(dtype=wp.bool),
    rotation: wp.array2d(dtype=wp.vec3),
    translation: wp.array2d(dtype=wp.vec3),
    frame: wp.array(dtype=wp.mat33),
    rest: wp.array2d(dtype=float),
    mass: wp.array2d(dtype=float),
    inertia: wp.array2d(dtype=wp.vec3),
    ipos: wp.array2d(dtype=wp.vec3),
    iquat: wp.array2d(dtype=wp.quat),
    armature: wp.array2d(dtype=float),
    matrix: wp.array3d(dtype=float),
):
    """The inertia matrix at qpos0, lower triangle, of the worlds whose masses changed.

    ``rotation`` and ``translation`` (nbody, nv) are the Jacobians of the body frames, ``frame`` their orientations;
    ``rest`` is what the matrix holds beside bodies and joints' own armature.
    """
    world, i, j = wp.tid()
    if not changed[world] or j > i:
        return
    value = rest[i, j]
    if i == j:
        value += armature[world % armature.shape[0], i]
    for body in range(1, rotation.shape[0]):
        wi = rotation[body, i]
        wj = rotation[body, j]
        vi = translation[body, i]
        vj = translation[body, j]
        if (wp.dot(wi, wi) + wp.dot(vi, vi)) * (wp.dot(wj, wj) + wp.dot(vj, vj)) > 0.0:
            offset = frame[body] * ipos[world % ipos.shape[0], body]
            ci = point_velocity(wi, vi, offset)
            cj = point_velocity(wj, vj, offset)
            value += mass[world % mass.shape[0], body] * wp.dot(ci, cj)
            q = iquat[world % iquat.shape[0], body]  # w x y z, as MuJoCo keeps it
            axes = frame[body] * wp.quat_to_matrix(wp.quat(q[1], q[2], q[3], q[0]))
            li = wp.transpose(axes) * wi
            lj = wp.transpose(axes) * wj
            value += wp.dot(wp.cw_mul(li, inertia[world % inertia.shape[0], body]), lj)
    matrix[world, i, j] = value


@wp.kernel
def factorize(changed: wp.array(dtype=wp.bool), matrix: wp.array3d(dtype=float)):
    """Cholesky factor of the lower triangle, in place, one thread a world."""
    world = wp.tid()
    if not changed[world]:
        return
    for j in range(matrix.shape[1]):
        pivot = matrix[world, j, j]
        for k in range(j):
            pivot -= matrix[world, j, k] * matrix[world, j, k]
        pivot = wp.sqrt(wp.max(pivot, 1.0e-15))
        matrix[world, j, j] = pivot
        for i in range(j + 1, matrix.shape[1]):
            value = matrix[world, i, j]
            for k in range(j):
                value -= matrix[world, i, k] * matrix[world, j, k]
            matrix[world, i, j] = value / pivot


@wp.kernel
def body_weights(
    changed: wp.array(dtype=wp.bool),
    rotation: wp.array2d(dtype=wp.vec3),
    translation: wp.array2d(dtype=wp.vec3),
    frame: wp.array(dtype=wp.mat33),
    weldid: wp.array(dtype=int),
    parentid: wp.array(dtype=int),
    mass: wp.array2d(dtype=float),
    ipos: wp.array2d(dtype=wp.vec3),
    matrix: wp.array3d(dtype=float),
    scratch: wp.array3d(dtype=float),
    invweight: wp.array2d(dtype=wp.vec2),
    subtreemass: wp.array2d(dtype=float),
):
    """Inverse weights and subtree masses of the bodies of changed worlds, as MuJoCo's mj_setConst has them."""
    world, body = wp.tid()
    if not changed[world]:
        return
    total = float(0.0)
    for other in range(body, parentid.shape[0]):
        ancestor = other
        while ancestor > body:
            ancestor = parentid[ancestor]
        if ancestor == body:
            total += mass[world % mass.shape[0], other]
    subtreemass[world, body] = total
    if weldid[body] == 0:
        invweight[world, body] = wp.vec2(0.0, 0.0)
        return
    offset = frame[body] * ipos[world % ipos.shape[0], body]
    linear = float(0.0)
    angular = float(0.0)
    for row in range(6):
        for i in range(matrix.shape[1]):
            w = rotation[body, i]
            value = w[row % 3]
            if row < 3:
                v = point_velocity(w, translation[body, i], offset)
                value = v[row]
            for k in range(i):
                value -= matrix[world, i, k] * scratch[world, body, k]
            value = value / matrix[world, i, i]
            scratch[world, body, i] = value
            if row < 3:
                linear += value * value
            else:
                angular += value * value
    linear = linear / 3.0
    angular = angular / 3.0
    if linear < 1.0e-15 and angular > 1.0e-15:
        linear = angular
    elif angular < 1.0e-15 and linear > 1.0e-15:
        angular = linear
    invweight[world, body] = wp.vec2(linear, angular)


@wp.kernel
def dof_weights(
    changed: wp.array(dtype=wp.bool),
    first: wp.array(dtype=int),
    count: wp.array(dtype=int),
    matrix: wp.array3d(dtype=float),
    scratch: wp.array3d(dtype=float),
    invweight: wp.array2d(dtype=float),
):
    """Inverse weights of the degrees of freedom of changed worlds: the mean over the ``count`` that go together."""
    world, dof = wp.tid()
    if not changed[world]:
        return
    total = float(0.0)
    for j in range(first[dof], first[dof] + count[dof]):
        for i in range(j, matrix.shape[1]):
            value = float(0.0)
            if i == j:
                value = float(1.0)
            for k in range(j, i):
                value -= matrix[world, i, k] * scratch[world, dof, k]
            value = value / matrix[world, i, i]
            scratch[world, dof, i] = value
            total += value * value
    invweight[world, dof] = total / float(count[dof])
