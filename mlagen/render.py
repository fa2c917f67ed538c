"""Plan -> source text, through one strict Jinja environment. Same plan, same bytes."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from mlagen.errors import ToolchainError
from mlagen.paths import SKELETON, template_root
from mlagen.plan.model import Plan

if TYPE_CHECKING:
    import jinja2


@cache
def environment() -> jinja2.Environment:
    """The one environment: undefined names are errors and nothing but `plan` is passed in.

    Raises:
        ToolchainError: the template engine is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ToolchainError(
            f"sources cannot be rendered here: {error}. Install: pip install 'mlagen[compile]'"
        ) from error
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_root(), encoding="utf-8"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        newline_sequence="\n",
    )


def render(plan: Plan) -> str:
    """The complete source of one kernel.

    Args:
        plan: what `make_plan` returned.

    Returns:
        CUDA C++ text that begins with the tables of the plan and compiles with mlagen's include folder.
    """
    return environment().get_template(SKELETON).render(plan=plan)
