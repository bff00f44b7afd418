"""Operations on jobs: scheduling, reading and acting, work of agents, artifacts, and what schedules jobs."""
